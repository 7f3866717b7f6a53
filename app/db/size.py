"""Reads how large the tables are and who keeps dead rows in them, for the command line."""

from typing import TypeAlias, TypeVar

import asyncpg

from app.db import migrate
from app.db.postgres.statements import STATEMENTS
from app.db.urls import DatabaseURL
from app.domain.size import DatabaseSize, IndexSize, SnapshotHolder, TableSize

_Session: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
_Row = TypeVar("_Row", TableSize, IndexSize, SnapshotHolder)


def database_size(url: DatabaseURL) -> DatabaseSize:
    """Sizes, estimates and holders of snapshots of this moment.

    Raises:
        DatabaseUnavailableError: no session was to be had.
    """
    return migrate.ask(url, _read)


async def _read(session: _Session) -> DatabaseSize:
    return DatabaseSize(
        await _rows(session, "list_table_sizes", TableSize),
        await _rows(session, "list_index_sizes", IndexSize),
        await _rows(session, "list_snapshots", SnapshotHolder),
    )


async def _rows(session: _Session, statement: str, kind: type[_Row]) -> tuple[_Row, ...]:
    found = await session.fetch(STATEMENTS[statement].sql)
    return tuple(kind(**row) for row in found)
