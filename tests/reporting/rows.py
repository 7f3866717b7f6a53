"""Rows of views, and jobs whose times are chosen."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg

from app.db.ids import new_id

Session: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Row = dict[str, Any]

# How long a test may take between the making of rows and their reading.
SLACK = Decimal(30)


async def view(session: Session, name: str, condition: str = "true") -> list[Row]:
    """The rows of a view that meet the condition, in the order of their columns."""
    found = await session.fetch(
        f"select * from reporting.{name} as v where {condition} order by v::text"  # noqa: S608
    )
    return [{k: str(x) if isinstance(x, UUID) else x for k, x in row.items()} for row in found]


async def only(session: Session, name: str, condition: str = "true") -> Row:
    """The only row of a view that meets the condition."""
    [row] = await view(session, name, condition)
    return row


def picked(rows: Sequence[Row], *columns: str) -> list[tuple[Any, ...]]:
    """These columns of each row."""
    return [tuple(row[column] for column in columns) for row in rows]


def is_about(value: Decimal, seconds: float) -> bool:
    """Whether a time that runs on was so many seconds a moment ago."""
    return Decimal(seconds) <= value <= Decimal(seconds) + SLACK


async def now(session: Session) -> datetime:
    """The database's clock."""
    instant: datetime = await session.fetchval("select clock_timestamp()")
    return instant.astimezone(UTC)


async def set_times(session: Session, table: str, row_id: str | int, **ago: float | None) -> None:
    """Put instants of a row so many seconds into the past, None for never."""
    given = [None if seconds is None else timedelta(seconds=seconds) for seconds in ago.values()]
    changes = ", ".join(
        f"{column} = now() - ${place}::interval" for place, column in enumerate(ago, start=2)
    )
    await session.execute(
        f"update haulage.{table} set {changes} where id = $1",  # noqa: S608
        UUID(row_id) if isinstance(row_id, str) else row_id,
        *given,
    )


async def ended(
    session: Session,
    pipeline: str,
    finished_at: datetime,
    *,
    status: str = "completed",
    wait: float = 1.0,
    run: float = 2.0,
    submitted_by: str = "",
    error: str | None = None,
) -> str:
    """A job that ended then, after so many seconds; its id."""
    job_id = new_id()
    started_at = finished_at - timedelta(seconds=run)
    await session.execute(
        "insert into haulage.jobs (id, pipeline, status, created_at, run_at, started_at,"
        " finished_at, attempt, claim_no, submitted_by)"
        " values ($1, $2, $3, $4, $4, $5, $6, 1, 1, $7)",
        UUID(job_id),
        pipeline,
        status,
        started_at - timedelta(seconds=wait),
        started_at,
        finished_at,
        submitted_by,
    )
    await session.execute(
        "insert into haulage.job_attempts (job_id, claim_no, attempt, node_id, started_at,"
        " ended_at, outcome, cause, error_class, error_message)"
        " values ($1, 1, 1, gen_random_uuid(), $2, $3, $4, $5, $6, $7)",
        UUID(job_id),
        started_at,
        finished_at,
        status,
        error and "exception",
        error and "ValueError",
        error,
    )
    return job_id
