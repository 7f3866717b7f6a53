"""Stores as the contract sees them: adapters to ask, and what happens behind their backs.

A new adapter becomes a class like the one here and a name in `conftest.STORES`. What it cannot do
it leaves out of its capabilities; only tests that ask for those are skipped.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import ModuleType
from typing import Any, Final, Protocol
from uuid import UUID

import asyncpg
import pytest
from support.waiting import eventually

from app.db.interface import DBInterface
from app.db.postgres import following, managing, reads
from app.db.postgres.adapter import PostgresJobsDB
from app.db.postgres.listener import CHANNELS
from app.db.postgres.statements import STATEMENTS
from app.db.schema import metadata
from app.domain.jobs import ClaimedJob, WakeUp

PAUSED_QUEUES: Final = "paused_queues"
COUNTED_WAKE_UPS: Final = "counted_wake_ups"

# Where something of a job is kept beside its row, and what has an age of its own.
BELONGINGS: Final = tuple(
    table.name for table in metadata.sorted_tables if "job_id" in table.columns
)
AGES: Final = {
    "nodes": ("started_at", "heartbeat_at", "stopped_at"),
    "datasets": ("created_at",),
    "call_cache": ("created_at",),
    "deleted_jobs": ("deleted_at",),
}


class Store(Protocol):
    """One store with its adapters."""

    name: str
    capabilities: frozenset[str]
    # Names of what an ended job with everything that a job can have leaves beside its row.
    belongings: frozenset[str]
    # Modules of the adapter that hold searches and changes of many to their bounds.
    bounded: tuple[ModuleType, ...]

    def connect(self, *, notify: bool = True) -> DBInterface:
        """Another adapter of this store, as another process would have it; closed by the store."""

    async def close(self) -> None:
        """Close every adapter that was made."""

    async def end_lease(self, node_id: str) -> None:
        """As if the node had not renewed for longer than its lease."""

    async def ask_to_cancel(self, job_id: str) -> None:
        """As if somebody had asked for the job's end."""

    async def pause(self, queue: str) -> None:
        """As if somebody had paused the queue."""

    async def let_wait(self, job_id: str, seconds: float) -> None:
        """As if a pending job had waited for so many seconds more."""

    async def age(self, job_id: str, seconds: float) -> None:
        """As if a job had been made, and had ended, so many seconds earlier."""

    async def age_all(self, seconds: float) -> None:
        """As if everything but jobs were older by so many seconds: nodes, datasets, calls, ..."""

    async def name_dataset(self, job_id: str, dataset_id: str) -> None:
        """As if the job's row named the dataset."""

    async def left_of(self, job_id: str) -> set[str]:
        """Names of what still has something of the job."""

    async def count_datasets(self) -> tuple[int, int]:
        """How many datasets there are, and rows of them."""

    async def clear(self) -> None:
        """As if no job, node, queue or paid call had ever been."""

    def holding(self, job_id: str) -> AbstractAsyncContextManager[None]:
        """Hold the job in a transaction of somebody else, which changes nothing of it."""

    async def until_blocked(self, calls: int) -> None:
        """Return once so many calls really wait for a job that is held."""

    async def in_turn(
        self, job_id: str, first: Coroutine[Any, Any, Any], second: Coroutine[Any, Any, Any]
    ) -> tuple[Any, Any]:
        """Have both calls really wait for the job, let the first one through before the second.

        Returns what became of each of them, its error where it failed.
        """

    def writing_milestone(self, job: ClaimedJob, stage: str) -> AbstractAsyncContextManager[int]:
        """A milestone in a transaction that commits at the block's end; its id."""

    def counting_wake_ups(self) -> AbstractAsyncContextManager[Callable[[], Awaitable[int]]]:
        """How many wake-ups were sent from here on until the call (COUNTED_WAKE_UPS)."""


def bound(monkeypatch: pytest.MonkeyPatch, store: Store, **bounds: int) -> None:
    """Lower bounds wherever the store's adapter has them."""
    for name, value in bounds.items():
        having = [module for module in store.bounded if hasattr(module, name)]
        assert having, name
        for module in having:
            monkeypatch.setattr(module, name, value)


class PostgresStore:
    """PostgreSQL with the newest schema."""

    name = "postgres"
    capabilities = frozenset({PAUSED_QUEUES, COUNTED_WAKE_UPS})
    belongings = frozenset(BELONGINGS) - {"webhook_deliveries"}
    bounded = (following, managing, reads)

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._adapters: list[PostgresJobsDB] = []

    def connect(self, *, notify: bool = True) -> PostgresJobsDB:
        adapter = PostgresJobsDB(self._dsn, default_pipeline="by-default", notify=notify)
        self._adapters.append(adapter)
        return adapter

    async def close(self) -> None:
        for adapter in self._adapters:
            await adapter.close()

    async def end_lease(self, node_id: str) -> None:
        await self._execute(
            "update haulage.nodes set heartbeat_at = heartbeat_at"
            " - make_interval(secs => lease_seconds + 1) where id = $1",
            UUID(node_id),
        )

    async def ask_to_cancel(self, job_id: str) -> None:
        await self._execute(
            "update haulage.jobs set cancel_requested_at = now() where id = $1", UUID(job_id)
        )

    async def pause(self, queue: str) -> None:
        await self._execute("insert into haulage.queues (name, is_paused) values ($1, true)", queue)

    async def let_wait(self, job_id: str, seconds: float) -> None:
        await self._execute(
            "update haulage.jobs set run_at = run_at - make_interval(secs => $2) where id = $1",
            UUID(job_id),
            seconds,
        )

    async def age(self, job_id: str, seconds: float) -> None:
        await self._execute(
            "update haulage.jobs set created_at = created_at - make_interval(secs => $2),"
            " finished_at = finished_at - make_interval(secs => $2) where id = $1",
            UUID(job_id),
            seconds,
        )

    async def age_all(self, seconds: float) -> None:
        for table, columns in AGES.items():
            changes = ", ".join(f"{c} = {c} - make_interval(secs => $1)" for c in columns)
            await self._execute(f"update haulage.{table} set {changes}", seconds)  # noqa: S608

    async def name_dataset(self, job_id: str, dataset_id: str) -> None:
        await self._execute(
            "update haulage.jobs set dataset_id = $2 where id = $1", UUID(job_id), UUID(dataset_id)
        )

    async def left_of(self, job_id: str) -> set[str]:
        connection = await asyncpg.connect(self._dsn)
        try:
            return {
                table
                for table in BELONGINGS
                if await connection.fetchval(
                    f"select exists (select from haulage.{table} where job_id = $1)",  # noqa: S608
                    UUID(job_id),
                )
            }
        finally:
            await connection.close()

    async def count_datasets(self) -> tuple[int, int]:
        connection = await asyncpg.connect(self._dsn)
        try:
            counted = await connection.fetchrow(
                "select (select count(*) from haulage.datasets) as datasets,"
                " (select count(*) from haulage.dataset_rows) as rows"
            )
        finally:
            await connection.close()
        assert counted is not None
        return counted["datasets"], counted["rows"]

    async def clear(self) -> None:
        # Truncate makes new files: 78 ms against 1 ms with a few rows.
        await self._execute(
            "delete from haulage.jobs; delete from haulage.nodes; delete from haulage.queues;"
            " delete from haulage.call_cache; delete from haulage.deleted_jobs"
        )

    @asynccontextmanager
    async def holding(self, job_id: str) -> AsyncIterator[None]:
        connection = await asyncpg.connect(self._dsn)
        try:
            async with connection.transaction():
                held = await connection.fetchval(
                    "select 1 from haulage.jobs where id = $1 for update", UUID(job_id)
                )
                assert held == 1
                yield
        finally:
            await connection.close()

    async def until_blocked(self, calls: int) -> None:
        connection = await asyncpg.connect(self._dsn)

        async def are_blocked() -> bool:
            blocked: int = await connection.fetchval(
                "select count(*) from pg_stat_activity"
                " where datname = current_database() and wait_event_type = 'Lock'"
            )
            return blocked == calls

        try:
            await eventually(are_blocked, f"{calls} sessions that wait for a lock")
        finally:
            await connection.close()

    async def in_turn(
        self, job_id: str, first: Coroutine[Any, Any, Any], second: Coroutine[Any, Any, Any]
    ) -> tuple[Any, Any]:
        # A row is granted in the order of asking.
        async with self.holding(job_id):
            one = asyncio.create_task(first)
            await self.until_blocked(1)
            two = asyncio.create_task(second)
            await self.until_blocked(2)
        answers = await asyncio.gather(one, two, return_exceptions=True)
        return answers[0], answers[1]

    @asynccontextmanager
    async def writing_milestone(self, job: ClaimedJob, stage: str) -> AsyncIterator[int]:
        connection = await asyncpg.connect(self._dsn)
        try:
            async with connection.transaction():
                held = await connection.fetchval(
                    STATEMENTS["report_progress"].sql,
                    UUID(job.id),
                    job.claim_no,
                    0.4,
                    stage,
                    None,
                    True,
                )
                assert held == 1
                yield await connection.fetchval(
                    "select max(id) from haulage.job_events where job_id = $1", UUID(job.id)
                )
        finally:
            await connection.close()

    @asynccontextmanager
    async def counting_wake_ups(self) -> AsyncIterator[Callable[[], Awaitable[int]]]:
        connection = await asyncpg.connect(self._dsn)
        heard: list[str] = []
        at_end = asyncio.Event()

        async def count() -> int:
            # Notifications arrive in the order of their commits, so ours is the last one.
            await connection.execute("notify the_end")
            await at_end.wait()
            return len(heard)

        try:
            await connection.add_listener(CHANNELS[WakeUp.JOBS], lambda *_: heard.append("wake"))
            await connection.add_listener("the_end", lambda *_: at_end.set())
            yield count
        finally:
            await connection.close()

    async def _execute(self, statement: str, *arguments: Any) -> None:
        connection = await asyncpg.connect(self._dsn)
        try:
            await connection.execute(statement, *arguments)
        finally:
            await connection.close()
