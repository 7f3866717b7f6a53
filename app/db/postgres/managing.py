"""Watching and managing jobs, queues and nodes in PostgreSQL; it schedules nothing.

Searches are composed in `reads`, which is imported by the first one: workers never search.
"""

import asyncio
import dataclasses
from typing import Any, Final
from uuid import UUID

import asyncpg

from app.db.ids import as_uuid
from app.db.postgres.calls import PostgresCalls
from app.db.postgres.rows import job_uuid
from app.domain.errors import (
    DatabaseUnavailableError,
    IllegalTransitionError,
    NodeGoneError,
    NodeNotFoundError,
    QuotaExceededError,
    SearchTooLongError,
)
from app.domain.jobs import TERMINAL_STATUSES, JobStatus, WakeUp
from app.domain.json_values import check_storable
from app.domain.keys import PendingCaps
from app.domain.managing import (
    MAX_BULK,
    MAX_COUNTED,
    MAX_PAGE,
    BulkChange,
    JobCount,
    JobFilter,
    JobPage,
    JobSummary,
    NodeState,
    QueueState,
)

SEARCH_SECONDS: Final = 2.0
_TRIES: Final = 3
_MORTAL: Final = (JobStatus.PENDING, JobStatus.RUNNING)
_UNDONE: Final = (JobStatus.FAILED, JobStatus.CANCELLED)


class PostgresManaging(PostgresCalls):
    """The part of `DBInterface` for those who watch and manage."""

    # -- looking ------------------------------------------------------------------------------

    async def list_jobs(
        self, wanted: JobFilter, *, limit: int, before: str | None = None
    ) -> JobPage:
        """See DBInterface."""
        return await self._find(wanted, limit, before)

    async def count_jobs(self, wanted: JobFilter) -> JobCount:
        """See DBInterface."""
        return await self._count(wanted)

    async def get_payload(self, job_id: str) -> str:
        """See DBInterface."""
        row = await self._fetch_row("get_payload", job_uuid(job_id))
        if row is None:
            raise await self._missing(job_id)
        return str(row["payload"])

    async def list_checkpoint_stages(self, job_id: str) -> list[str]:
        """See DBInterface."""
        rows = await self._fetch_all("list_checkpoint_stages", as_uuid(job_id))
        return [row["stage"] for row in rows]

    async def _find(
        self, wanted: JobFilter, limit: int, before: str | None, *, without_wish: bool = False
    ) -> JobPage:
        from app.db.postgres import reads  # noqa: PLC0415  see above

        _check(wanted)
        cursor = None if before is None else as_uuid(before)
        rows = await self._search(reads.page(wanted, limit, cursor, without_wish=without_wish))
        edge = rows[0]["edge"]
        found = [_summary(row) for row in rows if row["id"] is not None]
        if len(found) > limit:
            return JobPage(tuple(found[:limit]), found[limit - 1].id)
        return JobPage(tuple(found), edge and str(edge))

    async def _count(
        self, wanted: JobFilter, before: str | None = None, *, without_wish: bool = False
    ) -> JobCount:
        from app.db.postgres import reads  # noqa: PLC0415  see above

        _check(wanted)
        cursor = None if before is None else as_uuid(before)
        [row] = await self._search(reads.count(wanted, cursor, without_wish=without_wish))
        is_exact = row["n"] <= MAX_COUNTED and row["edge"] is None
        return JobCount(min(row["n"], MAX_COUNTED), is_exact)

    async def _search(self, composed: tuple[str, list[Any]]) -> list[asyncpg.Record]:
        """The rows of a search, which the server itself ends when it takes too long."""
        sql, arguments = composed
        rows = None
        async with self._borrowed() as connection:
            try:
                await connection.execute(
                    f"begin read only; set local statement_timeout = '{SEARCH_SECONDS}s';"
                    # A plan that knows neither filter nor limit would read whole tables.
                    " set local plan_cache_mode = force_custom_plan"
                )
                rows = await connection.fetch(sql, *arguments)
                await connection.execute("commit")
            except asyncpg.QueryCanceledError:
                await connection.execute("rollback")
            except asyncpg.PostgresError:
                connection.terminate()
                raise
        if rows is None:
            raise SearchTooLongError(SEARCH_SECONDS)
        return rows

    # -- acting on jobs -----------------------------------------------------------------------

    async def delete_job(self, job_id: str) -> None:
        """See DBInterface."""
        for _ in range(_TRIES):
            if await self._fetch_row_again("delete_job", job_uuid(job_id)) is not None:
                return
            status = await self._get_status(job_id)
            if not status.is_terminal:
                raise IllegalTransitionError(status, "deleted")
        raise DatabaseUnavailableError(f"job {job_id} changes too quickly")

    async def cancel_jobs(self, wanted: JobFilter) -> BulkChange:
        """See DBInterface."""
        return await self._change_many(wanted, _MORTAL, "cancel_jobs", without_wish=True)

    async def retry_jobs(self, wanted: JobFilter, caps: PendingCaps | None = None) -> BulkChange:
        """See DBInterface."""
        is_meant = wanted.statuses or wanted.ids is not None
        statuses = tuple(TERMINAL_STATUSES) if is_meant else _UNDONE
        bounds = (None, None) if caps is None else (caps.jobs, caps.size_bytes)
        return await self._change_many(wanted, statuses, "retry_jobs", *bounds)

    async def _change_many(
        self,
        wanted: JobFilter,
        open_statuses: tuple[JobStatus, ...],
        statement: str,
        *bounds: int | None,
        without_wish: bool = False,
    ) -> BulkChange:
        """Page by page, so that no statement holds many rows for long."""
        statuses = tuple(s for s in wanted.statuses or open_statuses if s in open_statuses)
        if not statuses:
            return BulkChange(0, 0, 0)
        wanted = dataclasses.replace(wanted, statuses=statuses)
        loop = asyncio.get_running_loop()
        # Each statement has its own bound; together they leave room for the last one.
        end = loop.time() + self._command_timeout_seconds / 2
        matched = changed = 0
        held: list[str] = []
        before: str | None = None
        while True:
            limit = min(MAX_PAGE, MAX_BULK - changed)
            page = await self._find(wanted, limit, before, without_wish=without_wish)
            if page.jobs:
                keys = [UUID(job.id) for job in page.jobs]
                # Whoever has another status by now was not asked for.
                asked = await self._fetch_all(statement, keys, list(statuses), *bounds)
                done = [row for row in asked if row.get("violated") is None]
                self._wake_for(statement, done)
                matched += len(keys)
                changed += len(done)
                held += [row["violated"] for row in asked if row.get("violated") is not None]
            before = page.before
            # Those without room do not count: behind them may be jobs of others.
            if before is None or changed >= MAX_BULK or loop.time() > end:
                break
        if before is None and held and not changed:
            raise QuotaExceededError(tuple(sorted(set(held))))
        left = 0
        if before is not None:
            rest = await self._count(wanted, before, without_wish=without_wish)
            left = rest.count if rest.is_exact else max(rest.count, 1)
        return BulkChange(matched + left, changed, len(held) + left)

    def _wake_for(self, statement: str, done: list[asyncpg.Record]) -> None:
        if done and statement == "retry_jobs":
            self._request_wake_up(WakeUp.JOBS)
        elif any(row["status"] == JobStatus.RUNNING for row in done):
            self._request_wake_up(WakeUp.CONTROL)

    async def _get_status(self, job_id: str) -> JobStatus:
        row = await self._fetch_row("get_status", job_uuid(job_id))
        if row is None:
            raise await self._missing(job_id)
        return JobStatus(row["status"])

    # -- queues and nodes ---------------------------------------------------------------------

    async def list_queues(self, limit: int, after: str = "") -> list[QueueState]:
        """See DBInterface."""
        check_storable({"after": after})
        return await self._fetch_as(QueueState, "list_queues", after, limit, MAX_COUNTED)

    async def pause_queue(self, name: str) -> None:
        """See DBInterface."""
        check_storable(name)
        await self._execute("pause_queue", name)

    async def resume_queue(self, name: str) -> None:
        """See DBInterface."""
        check_storable(name)
        await self._execute("resume_queue", name)
        self._request_wake_up(WakeUp.JOBS)

    async def list_nodes(
        self, limit: int, behind: tuple[bool, str] | None = None
    ) -> list[NodeState]:
        """See DBInterface."""
        is_alive, node_id = behind or (None, None)
        return await self._fetch_as(
            NodeState, "list_nodes", None, limit, is_alive, node_id and as_uuid(node_id)
        )

    async def hold_node(self, node_id: str) -> NodeState:
        """See DBInterface."""
        return await self._set_node(node_id, "draining")

    async def resume_node(self, node_id: str) -> NodeState:
        """See DBInterface."""
        node = await self._set_node(node_id, "active")
        self._request_wake_up(WakeUp.JOBS)
        return node

    async def _set_node(self, node_id: str, state: str) -> NodeState:
        key = as_uuid(node_id)
        is_set = key and await self._fetch_row("set_node_state", key, state) is not None
        found = await self._fetch_as(NodeState, "list_nodes", key, 1, None, None) if key else []
        if not found:
            raise NodeNotFoundError(node_id)
        if not is_set:
            raise NodeGoneError(node_id, found[0].state)
        return found[0]


def _check(wanted: JobFilter) -> None:
    """InvalidJsonError for texts that no row can hold."""
    check_storable(
        {
            "pipeline": wanted.pipeline,
            "queue": wanted.queue,
            "tag": wanted.tags,
            "error": wanted.error,
            "submitted_by": wanted.submitted_by,
        }
    )


def _summary(row: asyncpg.Record) -> JobSummary:
    fields = {name: row[name] for name in row.keys() if name != "edge"}  # noqa: SIM118  a record
    for name in ("id", "node_id", "batch_id"):
        fields[name] = fields[name] and str(fields[name])
    fields["status"] = JobStatus(fields["status"])
    fields["tags"] = tuple(fields["tags"])
    return JobSummary(**fields)
