"""Calls of named statements on a small pool that connects lazily; each has a bounded time.

What an adapter of this store is built on: it knows connections, no jobs.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, TypeVar
from uuid import UUID

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from app.db.postgres.connections import (
    PING_TIMEOUT_SECONDS,
    close_quietly,
    create_pool,
    unavailable_errors,
)
from app.db.postgres.listener import DebouncedNotify
from app.db.postgres.rows import job_uuid
from app.db.postgres.statements import STATEMENTS
from app.domain.errors import (
    DatabaseUnavailableError,
    JobDeletedError,
    JobNotFoundError,
    LeaseLostError,
)
from app.domain.jobs import Claim, WakeUp

# Of a call's time: whoever waits so long without a word from the server takes it for silent.
SILENCE_SHARE: Final = 0.5
DEADLOCK_PAUSE_SECONDS: Final = 0.2

_Row = TypeVar("_Row")


class PostgresCalls:
    """A pool and, where wanted, one more connection for NOTIFY."""

    def __init__(
        self,
        dsn: str,
        application_name: str,
        *,
        max_connections: int,
        command_timeout_seconds: float,
        notify: bool,
    ) -> None:
        self._dsn = dsn
        self._application_name = application_name
        self._max_connections = max_connections
        self._command_timeout_seconds = command_timeout_seconds
        self._is_notifying = notify
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._notify: DebouncedNotify | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """See DBInterface."""
        await self._connected()

    async def close(self) -> None:
        """See DBInterface."""
        pool, self._pool = self._pool, None
        notify, self._notify = self._notify, None
        if notify is not None:
            await notify.close()
        if pool is not None:
            await close_quietly(pool)

    async def ping(self) -> None:
        """See DBInterface."""
        async with self._borrowed(PING_TIMEOUT_SECONDS) as connection:
            if await connection.fetchval("show transaction_read_only") == "on":
                raise DatabaseUnavailableError("the server takes no writes")

    async def schema_revision(self) -> str | None:
        """See DBInterface."""
        row = await self._fetch_row("schema_revision")
        return None if row is None else str(row["version_num"])

    async def _connected(self) -> "asyncpg.Pool[asyncpg.Record]":
        async with self._opening:
            if self._pool is None:
                if self._is_notifying:
                    self._notify = DebouncedNotify(await self._new_pool(1))
                self._pool = await self._new_pool(self._max_connections)
        return self._pool

    async def _new_pool(self, max_connections: int) -> "asyncpg.Pool[asyncpg.Record]":
        pool = create_pool(
            self._dsn, self._application_name, max_connections, self._command_timeout_seconds
        )
        async with unavailable_errors():
            await pool
        return pool

    def _request_wake_up(self, wake_up: WakeUp) -> None:
        if self._notify is not None:
            self._notify.request(wake_up)

    @asynccontextmanager
    async def _borrowed(
        self, timeout_seconds: float | None = None
    ) -> AsyncGenerator["PoolConnectionProxy[asyncpg.Record]", None]:
        """A connection for one short piece of work; the time-out covers all of it."""
        pool = await self._connected()
        patience = timeout_seconds or self._command_timeout_seconds
        async with (
            unavailable_errors(),
            asyncio.timeout(patience),
            pool.acquire() as connection,
        ):
            began = time.monotonic()
            try:
                yield connection
            except asyncpg.PostgresError:
                raise
            except BaseException:
                # Nobody knows what the connection is in the middle of. When a call is cancelled,
                # the driver would ask the server to stop and wait for its answer: half a minute
                # under a silent network, and nobody who gave up waits so.
                connection.terminate()
                if time.monotonic() - began > SILENCE_SHARE * patience:
                    # A server that is slow says so in time. Silence has rarely struck one session
                    # alone, and each of them would cost somebody the whole time-out.
                    await pool.expire_connections()
                raise

    async def _execute(self, name: str, *arguments: object) -> None:
        async with self._borrowed() as connection:
            await connection.execute(STATEMENTS[name].sql, *arguments)

    async def _fetch_row(self, name: str, *arguments: object) -> asyncpg.Record | None:
        async with self._borrowed() as connection:
            return await connection.fetchrow(STATEMENTS[name].sql, *arguments)

    async def _fetch_row_again(self, name: str, *arguments: object) -> asyncpg.Record | None:
        """As `_fetch_row`, once more where a deadlock made it the loser.

        For deletions that cascade: two of them may meet in the rows below, each in its own order.
        """
        try:
            return await self._fetch_row(name, *arguments)
        except DatabaseUnavailableError as error:
            if not isinstance(error.__cause__, asyncpg.DeadlockDetectedError):
                raise
        # The winner goes on first: at once both would meet again.
        await asyncio.sleep(DEADLOCK_PAUSE_SECONDS)
        return await self._fetch_row(name, *arguments)

    async def _fetch_all(self, name: str, *arguments: object) -> list[asyncpg.Record]:
        async with self._borrowed() as connection:
            return await connection.fetch(STATEMENTS[name].sql, *arguments)

    async def _fetch_as(self, row_class: type[_Row], name: str, *arguments: object) -> list[_Row]:
        return [row_class(**row) for row in await self._fetch_all(name, *arguments)]

    async def _missing(self, job_id: str) -> JobNotFoundError:
        """Why there is no such job."""
        deleted = await self._fetch_row("is_deleted", job_uuid(job_id))
        return JobNotFoundError(job_id) if deleted is None else JobDeletedError(job_id)

    async def _held(self, name: str, claim: Claim, *arguments: object) -> asyncpg.Record:
        row = await self._fetch_row(name, UUID(claim.job_id), claim.claim_no, *arguments)
        if row is None:
            raise LeaseLostError(claim.job_id, claim.claim_no)
        return row
