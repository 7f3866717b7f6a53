"""Indexes that no search may use: what a concurrent build leaves that was broken off.

Who builds an index beside the writers may be killed half-way. The index is then written by every
insert and read by nobody. One whose build is under way looks the same, so `migrate` rebuilds them
only while it alone may change the schema.
"""

import re
from typing import Final

import asyncpg
from sqlalchemy import Connection, text

from app.db.schema import SCHEMA

_INVALID: Final = f"""
select c.relname
from pg_index i
join pg_class c on c.oid = i.indexrelid
where not i.indisvalid and c.relnamespace = to_regnamespace('{SCHEMA}')
order by c.relname
"""  # noqa: S608  a constant

# What `reindex concurrently` calls the index that it makes and the one that it replaces.
_REMAINS: Final = re.compile(r"_cc(new|old)\d*$")
# A build waits for every transaction that was there before it; nobody waits behind it.
_BUILD_LOCK_TIMEOUT: Final = "60s"


async def find_invalid_indexes(connection: "asyncpg.Connection[asyncpg.Record]") -> list[str]:
    """Their names, without the schema."""
    return [row["relname"] for row in await connection.fetch(_INVALID)]


def rebuild_invalid_indexes(connection: Connection) -> list[str]:
    """Build them again beside the writers, drop what a broken rebuild has left; all their names."""
    connection.execution_options(isolation_level="AUTOCOMMIT")
    connection.exec_driver_sql(f"set lock_timeout = '{_BUILD_LOCK_TIMEOUT}'")
    quote = connection.dialect.identifier_preparer.quote
    names = list(connection.scalars(text(_INVALID)))
    # Remains first: each is a second copy of an index that is there.
    for name in sorted(names, key=lambda name: not _REMAINS.search(name)):
        verb = "drop index" if _REMAINS.search(name) else "reindex index"
        connection.exec_driver_sql(f"{verb} concurrently {SCHEMA}.{quote(name)}")
    return names
