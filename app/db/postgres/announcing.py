"""Tells the database what a service can run: once at its start, and beside it where that failed.

`haulage.enqueue` has to know the names and defaults that requests over HTTP get from the service's
own memory. Services add to each other's; one that stops takes nothing back. It must never hold up a
start: rows that somebody else keeps locked are waited for a moment only.

    announce_at_start() --failed--> start() --> [ announce --failed--> pause ] --> done
                     '--done or refused--> start() does nothing
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import asyncpg

from app.db.postgres.connections import connect, unavailable_errors
from app.db.postgres.statements import STATEMENTS
from app.db.urls import DatabaseURL
from app.domain.errors import DatabaseUnavailableError, RoleError
from app.domain.jobs import Registration
from app.loops import PeriodicLoop
from app.telemetry import Telemetry

# Services that start together wait for each other, milliseconds; whoever takes longer holds rows.
LOCK_SECONDS: Final = 1.0
# For all of it, which takes milliseconds too.
ANNOUNCE_SECONDS: Final = 3.0
# Longest pause between two tries.
RETRY_SECONDS: Final = 5.0
STOP_SECONDS: Final = 0.1


async def announce_pipelines(
    url: DatabaseURL,
    registrations: Collection[Registration],
    seconds_ago: float = 0.0,
    *,
    default: str | None,
    with_dataset: Collection[str],
    unasked: Collection[str] = (),
) -> None:
    """Store what jobs may name and what they get where they say nothing; all of it or nothing.

    Args:
        seconds_ago: when the service started; what others have told since then stays.
        default: name of the pipeline for jobs that name none; None leaves it as it is.
        with_dataset: names of those whose payloads name a dataset.
        unasked: names of those whose classes could not be asked for their defaults; what others
            told of them stays.

    Raises:
        DatabaseUnavailableError: in ANNOUNCE_SECONDS, also where somebody holds a row.
        RoleError: we may not write it.
    """
    columns = zip(
        *(
            (
                each.name,
                each.max_attempts,
                each.limits.timeout_seconds,
                each.limits.start_timeout_seconds,
                each.limits.stall_seconds,
                each.limits.memory_limit_bytes,
                each.name in with_dataset,
            )
            for each in registrations
        ),
        strict=True,
    )
    statement = STATEMENTS["announce_pipelines"].sql
    async with unavailable_errors(), asyncio.timeout(ANNOUNCE_SECONDS):
        connection = await connect(
            url.asyncpg_dsn,
            "haulage-announce",
            ANNOUNCE_SECONDS,
            lock_timeout=f"{LOCK_SECONDS * 1_000:.0f}ms",
        )
        try:
            given = [list(column) for column in columns]
            await connection.execute(statement, *given, default, list(unasked), seconds_ago)
        except asyncpg.InsufficientPrivilegeError as error:
            raise RoleError(f"{error}, of the schema haulage") from error
        finally:
            connection.terminate()


class Announcer:
    """Announces until it is done, and then is at rest.

    What could not be stored is what others announced before; nothing else depends on it.

    Args:
        announce: makes one try; told how many seconds ago the first one began.
    """

    def __init__(self, announce: Callable[[float], Awaitable[None]], telemetry: Telemetry) -> None:
        self._announce = announce
        self._telemetry = telemetry
        self._began = time.monotonic()
        self._is_over = False
        self._loop = PeriodicLoop(
            "announcing",
            self._announce_once,
            RETRY_SECONDS,
            telemetry,
            max_retry_seconds=RETRY_SECONDS,
        )

    def announce_at_start(self) -> None:
        """Make the first try; what it failed of is told, and left to `start` unless refused.

        Works under a running event loop too (uvicorn's factory), and then blocks it.
        """
        self._began = time.monotonic()
        with ThreadPoolExecutor(1, thread_name_prefix="haulage-announce") as executor:
            executor.submit(asyncio.run, self._first_try()).result()

    def start(self) -> None:
        """Go on trying on the running event loop, where the first try did not do."""
        if not self._is_over:
            self._loop.start()

    async def stop(self) -> None:
        """Give up, in the middle of a try too."""
        await self._loop.stop(STOP_SECONDS)

    async def close(self) -> None:
        """Nothing is held between two tries."""

    async def _first_try(self) -> None:
        try:
            await self._try()
        except DatabaseUnavailableError as error:
            self._telemetry.emit("pipelines.unannounced", reason=str(error))

    async def _announce_once(self) -> None:
        """One more try; the last where it succeeds or is refused."""
        await self._try()
        await self._loop.stop()

    async def _try(self) -> None:
        seconds_ago = time.monotonic() - self._began
        try:
            await self._announce(seconds_ago)
        except RoleError as error:
            # A right is given by somebody who starts us again.
            self._telemetry.emit("pipelines.unannounced", reason=str(error))
        else:
            self._telemetry.emit("pipelines.announced", seconds=round(seconds_ago, 1))
        self._is_over = True
