"""Following jobs in PostgreSQL: one statement for all who follow, and pages of what attempts left.

It only reads.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

import asyncpg

from app.db.ids import as_uuid
from app.db.postgres.calls import PostgresCalls
from app.db.postgres.statements import STATEMENTS
from app.domain.following import (
    LOG_LINES_LOOKED_AT,
    Checkpoint,
    FollowCursor,
    FoundLines,
    JobNews,
    LogCursor,
    StoredEvent,
    StoredLine,
)
from app.domain.jobs import Attempt, AttemptOutcome, Cause, JobStatus, Progress
from app.domain.json_values import storable_text

# It comes again in a moment: better than to hang on a connection that went silent.
NEWS_TIMEOUT_SECONDS: Final = 5.0

_LINE: Final = tuple(field.name for field in dataclasses.fields(StoredLine))


class PostgresFollowing(PostgresCalls):
    """The part of `DBInterface` about following."""

    async def list_news(self, cursors: Sequence[FollowCursor], limit: int) -> list[JobNews]:
        """See DBInterface."""
        rows = await self._fetch_soon(
            "list_news",
            [as_uuid(cursor.job_id) for cursor in cursors],
            [cursor.after for cursor in cursors],
            [cursor.version for cursor in cursors],
            limit,
        )
        return [_news(n, list(group)) for n, group in groupby(rows, key=itemgetter("n"))]

    async def list_lines(self, cursors: Sequence[LogCursor], limit: int) -> list[FoundLines]:
        """See DBInterface."""
        rows = await self._fetch_soon(
            "list_lines",
            [as_uuid(cursor.job_id) for cursor in cursors],
            [cursor.after for cursor in cursors],
            [cursor.least_level for cursor in cursors],
            limit,
            LOG_LINES_LOOKED_AT,
        )
        found = [FoundLines((), cursor.after, is_whole=True) for cursor in cursors]
        for n, group in groupby(rows, key=itemgetter("n")):
            found[n - 1] = _found(list(group), cursors[n - 1], limit)
        return found

    async def find_log_tail(self, job_id: str, lines: int, least_level: int = 0) -> int:
        """See DBInterface."""
        row = await self._fetch_row("find_log_tail", as_uuid(job_id), lines, least_level)
        return 0 if row is None else int(row["id"])

    async def list_attempts_after(self, job_id: str, claim_no: int, limit: int) -> list[Attempt]:
        """See DBInterface."""
        rows = await self._fetch_as(
            Attempt, "list_attempts_after", as_uuid(job_id), claim_no, limit
        )
        return [
            dataclasses.replace(
                attempt,
                outcome=attempt.outcome and AttemptOutcome(attempt.outcome),
                cause=attempt.cause and Cause(attempt.cause),
            )
            for attempt in rows
        ]

    async def list_checkpoints(self, job_id: str, after: str, limit: int) -> list[Checkpoint]:
        """See DBInterface."""
        return await self._fetch_as(
            Checkpoint, "list_checkpoints", as_uuid(job_id), storable_text(after), limit
        )

    async def get_checkpoint(self, job_id: str, stage: str) -> bytes | None:
        """See DBInterface."""
        if storable_text(stage) != stage:
            return None  # no stage can be called so, and the server would refuse to look
        row = await self._fetch_row("get_checkpoint", as_uuid(job_id), stage)
        return None if row is None else bytes(row["data"])

    async def _fetch_soon(self, name: str, *arguments: object) -> list[asyncpg.Record]:
        async with self._borrowed(NEWS_TIMEOUT_SECONDS) as connection:
            return await connection.fetch(STATEMENTS[name].sql, *arguments)


def _found(rows: Sequence[asyncpg.Record], cursor: LogCursor, limit: int) -> FoundLines:
    lines = [StoredLine(*(row[name] for name in _LINE)) for row in rows if row["id"] is not None]
    if len(lines) == limit:
        return FoundLines(tuple(lines), lines[-1].id, is_whole=False)
    looked_at = LOG_LINES_LOOKED_AT if cursor.least_level > 0 else limit
    return FoundLines(tuple(lines), rows[0]["last_id"], is_whole=rows[0]["seen"] < looked_at)


def _news(n: int, rows: Sequence[asyncpg.Record]) -> JobNews:
    state = rows[0]
    fraction: float | None = state["progress_fraction"]
    return JobNews(
        cursor=n - 1,
        status=state["status"] and JobStatus(state["status"]),
        version=state["version"],
        progress=None
        if fraction is None
        else Progress(fraction, state["progress_stage"], state["progress_message"]),
        events=tuple(_events(rows)),
    )


def _events(rows: Iterable[asyncpg.Record]) -> Iterable[StoredEvent]:
    return (
        StoredEvent(
            id=row["event_id"],
            kind=row["kind"],
            attempt=row["attempt"],
            stage=row["stage"] or "",
            fraction=row["fraction"],
            message=row["message"],
            created_at=row["created_at"],
        )
        for row in rows
        if row["event_id"] is not None
    )
