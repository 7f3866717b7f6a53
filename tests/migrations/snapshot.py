"""A database's schema as plain lines that can be compared, straight from the catalogue."""

from collections.abc import Iterator

import asyncpg

_QUERIES = {
    "column": """
        select n.nspname, c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
               a.attnotnull, a.attidentity, pg_get_expr(d.adbin, d.adrelid)
        from pg_attribute a
        join pg_class c on c.oid = a.attrelid and c.relkind in ('r', 'p', 'v', 'm')
        join pg_namespace n on n.oid = c.relnamespace
        left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
        where a.attnum > 0 and not a.attisdropped and n.nspname !~ '^(pg_|information_schema)'
        order by n.nspname, c.relname, a.attnum
    """,
    "constraint": """
        select n.nspname, c.conrelid::regclass::text, c.conname, c.convalidated,
               pg_get_constraintdef(c.oid)
        from pg_constraint c join pg_namespace n on n.oid = c.connamespace
        where n.nspname !~ '^(pg_|information_schema)'
    """,
    "index": """
        select i.schemaname, i.tablename, i.indexname, i.indexdef, x.indisvalid
        from pg_indexes i
        join pg_index x on x.indexrelid = format('%I.%I', i.schemaname, i.indexname)::regclass
        where i.schemaname !~ '^(pg_|information_schema)'
    """,
    "relation": """
        select n.nspname, c.relname, c.relkind::text, c.reloptions,
               case when c.relkind in ('v', 'm') then pg_get_viewdef(c.oid) end
        from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname !~ '^(pg_|information_schema)' and c.relkind <> 'c'
    """,
    "routine": """
        select n.nspname, p.proname, pg_get_functiondef(p.oid), p.proacl::text
        from pg_proc p join pg_namespace n on n.oid = p.pronamespace
        where n.nspname !~ '^(pg_|information_schema)'
    """,
    "comment": """
        select n.nspname, c.relname, d.objsubid, d.description
        from pg_description d
        join pg_class c on c.oid = d.objoid and d.classoid = 'pg_class'::regclass
        join pg_namespace n on n.oid = c.relnamespace
        where n.nspname !~ '^(pg_|information_schema)'
        union all
        select n.nspname, p.proname, 0, d.description
        from pg_description d
        join pg_proc p on p.oid = d.objoid and d.classoid = 'pg_proc'::regclass
        join pg_namespace n on n.oid = p.pronamespace
        where n.nspname !~ '^(pg_|information_schema)'
    """,
    "type": """
        select n.nspname, t.typname, t.typtype::text
        from pg_type t join pg_namespace n on n.oid = t.typnamespace
        where n.nspname !~ '^(pg_|information_schema)' and t.typtype in ('e', 'd', 'r')
    """,
}


async def schema_of(url: str) -> list[str]:
    """A line for each column, constraint, index, table, view, routine, type and comment of ours."""
    connection = await asyncpg.connect(url)
    try:
        lines = [
            f"{kind}: {tuple(row)}"
            for kind, query in _QUERIES.items()
            for row in await connection.fetch(query)
        ]
    finally:
        await connection.close()
    return sorted(lines)


def as_psql_sends(script: str) -> Iterator[str]:
    """Transactions whole, and one at a time what stands between them, as an index built beside."""
    for piece in script.split("COMMIT;"):
        between, begin, transaction = piece.partition("BEGIN;")
        yield from filter(str.strip, between.split(";"))
        if begin:
            yield f"{begin}{transaction}COMMIT;"
