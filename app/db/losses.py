"""What a downgrade will drop, told before it is done.

Tables and columns come from the very statements that alembic would run, so that none is forgotten;
what it means comes from the docstring of each step's `downgrade`.
"""

import re
from typing import Final, TypeAlias

import asyncpg
from alembic.script import Script

from app.db import migrate
from app.db.schema import SCHEMA
from app.db.urls import DatabaseURL

# Beyond this many rows an exact number tells nobody more.
COUNTED_ROWS: Final = 1_000_000
COUNT_SECONDS: Final = 10.0

_Session: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_DROP: Final = re.compile(
    r"^\s*drop (?P<kind>table|view|function) (?:if exists )?(?P<what>[\w.]+)"
    r"|^\s*alter table (?P<table>[\w.]+) drop column (?:if exists )?(?P<column>\w+)",
    re.IGNORECASE | re.MULTILINE,
)


def downgrade_losses(url: DatabaseURL, revision: str) -> list[str]:
    """A line for each table, column, view and function that goes, then what each step says.

    Empty where nothing would be done.

    Raises:
        ConfigurationError: there is no such revision below the database's.
    """
    steps = migrate.steps_down(url, revision)
    if not steps:
        return []
    way = f"{steps[0].revision}:{steps[-1].down_revision or 'base'}"
    drops = list(_DROP.finditer(migrate.sql_of(way, is_downgrade=True)))
    dropped = migrate.ask(url, lambda session: _describe(session, drops))
    told = [f"{step.revision}: {said}" for step in steps if (said := _said(step))]
    return [*dropped, *told]


def _said(step: Script) -> str:
    return " ".join((step.module.downgrade.__doc__ or "").split())


async def _describe(session: _Session, drops: list[re.Match[str]]) -> list[str]:
    tables = {drop["what"] for drop in drops if (drop["kind"] or "").lower() == "table"}
    lines: list[str] = []
    for drop in drops:
        if drop["what"] == f"{SCHEMA}.alembic_version" or drop["table"] in tables:
            continue
        if drop["column"]:
            held = await _count(session, drop["table"], f"{drop['column']} is not null")
            lines.append(f"drops column {drop['table']}.{drop['column']}: set in {held}")
        elif drop["what"] in tables:
            lines.append(f"drops table {drop['what']}: {await _count(session, drop['what'])}")
        else:
            lines.append(f"drops {drop['kind'].lower()} {drop['what']}")
    return lines


async def _count(session: _Session, table: str, condition: str = "true") -> str:
    # Names come from our own steps.
    found = f"select from {table} where {condition} limit {COUNTED_ROWS + 1}"
    try:
        rows = await session.fetchval(
            f"select count(*) from ({found}) found",  # noqa: S608
            timeout=COUNT_SECONDS,
        )
    except TimeoutError:
        return "more rows than could be counted"
    if rows > COUNTED_ROWS:
        return f"more than {COUNTED_ROWS:,} rows"
    return "1 row" if rows == 1 else f"{rows:,} rows"
