"""Writes the data dictionary of reporting.md from the comments in a migrated database.

python docs/reporting.py           write it
python docs/reporting.py --check   only compare; exit code 1 and a sentence where it is stale
"""

import argparse
import asyncio
import sys
from collections import defaultdict
from pathlib import Path
from types import MappingProxyType
from typing import Final

import asyncpg

from app.db.definitions import ORDER
from docs.database import migrated_database
from docs.render import rendered

PAGE: Final = Path(__file__).parent / "reporting.md"

_COLUMNS: Final = """
select
    c.relname as view,
    coalesce(a.attname, '') as column,
    coalesce(format_type(a.atttypid, a.atttypmod), '') as type,
    d.description as meaning
from pg_class c
-- The view itself as column 0, its columns in their order.
cross join lateral (
    select 0::smallint as attnum, null::name as attname, null::oid as atttypid, null as atttypmod
    union all
    select attnum, attname, atttypid, atttypmod
    from pg_attribute
    where attrelid = c.oid and attnum > 0 and not attisdropped
) a
left join pg_description d
    on d.objoid = c.oid and d.classoid = 'pg_class'::regclass and d.objsubid = a.attnum
where c.relnamespace = 'reporting'::regnamespace and c.relkind = 'v'
order by c.relname, a.attnum
"""
# Short names that people write themselves.
_TYPES: Final = MappingProxyType({"timestamp with time zone": "timestamptz"})


async def dictionary(url: str) -> str:
    """Every view of the database with its columns, in the order of their making.

    Raises:
        ValueError: a view or a column has no comment.
    """
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(_COLUMNS)
    finally:
        await connection.close()
    if silent := [
        f"{row['view']}.{row['column']}".rstrip(".") for row in rows if not row["meaning"]
    ]:
        raise ValueError(f"no comment on {', '.join(silent)}")
    of_view: dict[str, list[asyncpg.Record]] = defaultdict(list)
    for row in rows:
        of_view[row["view"]].append(row)
    return "\n\n".join(_section(of_view[view]) for view in sorted(of_view, key=_place))


def main(arguments: list[str] | None = None) -> int:
    """Write or compare; the exit code."""
    parser = argparse.ArgumentParser(description="Write the data dictionary.")
    parser.add_argument("--check", action="store_true", help="only compare")
    only_check = parser.parse_args(arguments).check
    with migrated_database() as url:
        made = asyncio.run(dictionary(url))
    before = PAGE.read_text("utf-8")
    after = rendered(before, {"dictionary": lambda: made})
    if before == after:
        return 0
    if only_check:
        print(f"{PAGE.name} is not what the database says: run `python docs/reporting.py`")
        return 1
    PAGE.write_text(after, "utf-8")
    return 0


def _place(view: str) -> int:
    order = ORDER["reporting"]
    return order.index(view) if view in order else len(order)


def _section(rows: list[asyncpg.Record]) -> str:
    about, *columns = rows
    lines = [f"### {about['view']}", "", about["meaning"], ""]
    lines += ["| column | type | meaning |", "|---|---|---|"]
    for row in columns:
        meaning = row["meaning"].replace("|", "\\|")
        lines.append(f"| `{row['column']}` | {_TYPES.get(row['type'], row['type'])} | {meaning} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
