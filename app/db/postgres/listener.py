"""Wake-ups: the LISTEN connection and the debounced NOTIFY that feeds it.

A wake-up is a hint that jobs may be due. The listener proves itself by a notification to itself at
intervals; when that does not come back (cut network, frozen backend, a pooler that drops LISTEN) it
reconnects with backoff and yields once for what it may have missed. Polling runs underneath, so a
deaf listener costs latency and never a job. It must never hold a transaction open.
"""

import asyncio
import functools
import secrets
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

import asyncpg

from app.db.postgres.connections import CLOSE_SECONDS, close_quietly, connect, describe
from app.domain.jobs import WakeUp
from app.loops import retry_delay_seconds
from app.telemetry import Telemetry

CHANNELS: Final = {WakeUp.JOBS: "haulage_wake", WakeUp.CONTROL: "haulage_control"}
PROBE_INTERVAL_SECONDS: Final = 10.0
PROBE_TIMEOUT_SECONDS: Final = 3.0
# A session that ends sooner counts as a failed one, or a server that accepts sessions only to end
# them would be connected to without a pause.
STEADY_SECONDS: Final = 10.0
# New jobs wait for polling meanwhile, so not much longer than that.
RECONNECT_CAP_SECONDS: Final = 5.0
NOTIFY_INTERVAL_SECONDS: Final = 0.02
FLUSH_SECONDS: Final = 0.3

_CONNECTION_FAULTS: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)


class WakeUpListener:
    """One LISTEN connection that is renewed for as long as somebody iterates."""

    def __init__(
        self,
        dsn: str,
        telemetry: Telemetry,
        *,
        probe_interval_seconds: float = PROBE_INTERVAL_SECONDS,
        probe_timeout_seconds: float = PROBE_TIMEOUT_SECONDS,
    ) -> None:
        self._dsn = dsn
        self._telemetry = telemetry
        self._probe_interval_seconds = probe_interval_seconds
        self._probe_timeout_seconds = probe_timeout_seconds
        # Its own channel: other listeners are not woken by our probes.
        self._probe_channel = f"haulage_probe_{secrets.token_hex(6)}"
        self._woken = asyncio.Event()
        self._woken_for = WakeUp(0)
        self._proved = asyncio.Event()
        self._gone = asyncio.Event()
        self.is_connected = False

    async def wake_ups(self) -> AsyncGenerator[WakeUp, None]:
        """Yield for every burst of notifications, and everything after every reconnect."""
        failures = 0
        while True:
            began = time.monotonic()
            connection = None
            try:
                connection = await self._listen()
                self.is_connected = True
                self._telemetry.emit("listener.connected", channels=",".join(CHANNELS.values()))
                yield WakeUp.JOBS | WakeUp.CONTROL
                async for wake_up in self._until_lost(connection):
                    yield wake_up
                is_gone = self._gone.is_set()
                reason = "its session was ended" if is_gone else "no answer to its own probe"
            except _CONNECTION_FAULTS as error:
                reason = describe(error)
            finally:
                self.is_connected = False
                if connection is not None:
                    await close_quietly(connection, timeout_seconds=1.0)
            self._telemetry.emit("listener.disconnected", reason=reason)
            failures = 1 if time.monotonic() - began > STEADY_SECONDS else failures + 1
            await asyncio.sleep(retry_delay_seconds(failures, max_seconds=RECONNECT_CAP_SECONDS))

    async def _listen(self) -> "asyncpg.Connection[asyncpg.Record]":
        connection = await connect(self._dsn, "haulage-listener")
        self._gone.clear()
        connection.add_termination_listener(lambda _: self._gone.set())
        try:
            for wake_up, channel in CHANNELS.items():
                await connection.add_listener(channel, functools.partial(self._on_wake, wake_up))
            await connection.add_listener(self._probe_channel, self._on_probe)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _on_wake(self, wake_up: WakeUp, *_: Any) -> None:
        self._woken_for |= wake_up
        self._woken.set()

    def _on_probe(self, *_: Any) -> None:
        self._proved.set()

    async def _until_lost(
        self, connection: "asyncpg.Connection[asyncpg.Record]"
    ) -> AsyncGenerator[WakeUp, None]:
        while True:
            woken = await self._first_of(self._woken, self._gone, self._probe_interval_seconds)
            if self._gone.is_set():
                return
            if woken:
                self._woken.clear()
                wake_up, self._woken_for = self._woken_for, WakeUp(0)
                yield wake_up
            elif not await self._hears(connection):
                return

    async def _hears(self, connection: "asyncpg.Connection[asyncpg.Record]") -> bool:
        self._proved.clear()
        try:
            async with asyncio.timeout(self._probe_timeout_seconds):
                await connection.execute("select pg_notify($1, '')", self._probe_channel)
                await self._proved.wait()
        except TimeoutError:
            return False
        return True

    @staticmethod
    async def _first_of(
        wanted: asyncio.Event, other: asyncio.Event, timeout_seconds: float
    ) -> bool:
        waiting = {asyncio.create_task(wanted.wait()), asyncio.create_task(other.wait())}
        try:
            await asyncio.wait(
                waiting, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        return wanted.is_set()


class DebouncedNotify:
    """Sends one NOTIFY a channel for many wishes: the first at once, later ones each 20 ms.

    Sent after the inserting transaction on a connection of its own: inside it, NOTIFY takes a
    database-wide lock at commit (measured: 0.2 to 0.35 of the insert rate with 32 committers).
    A lost notification costs one poll interval, never a job.

    Args:
        pool: of one connection and for this alone: a wake-up must not queue up behind inserts.
    """

    def __init__(
        self,
        pool: "asyncpg.Pool[asyncpg.Record]",
        interval_seconds: float = NOTIFY_INTERVAL_SECONDS,
    ) -> None:
        self._pool = pool
        self._interval_seconds = interval_seconds
        self._wanted = WakeUp(0)
        self._task: asyncio.Task[None] | None = None
        self.sent = 0

    def request(self, wake_up: WakeUp = WakeUp.JOBS) -> None:
        """Have schedulers woken soon; returns at once."""
        self._wanted |= wake_up
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send_wanted(), name="haulage-notify")

    async def flush(self) -> None:
        """Return once every wish has been sent or has failed, within a moment."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=FLUSH_SECONDS)

    async def close(self) -> None:
        """Send what is wished for and give the connection back."""
        await self.flush()
        await close_quietly(self._pool, CLOSE_SECONDS)

    async def _send_wanted(self) -> None:
        while wanted := self._wanted:
            self._wanted = WakeUp(0)
            statements = [f"notify {CHANNELS[wake_up]}" for wake_up in wanted]
            try:
                async with self._pool.acquire(timeout=2.0) as connection:
                    await connection.execute(";".join(statements), timeout=2.0)
                self.sent += 1
            except _CONNECTION_FAULTS:
                # Polling covers it, and the next insert tries again.
                return
            await asyncio.sleep(self._interval_seconds)
