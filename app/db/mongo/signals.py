"""Wake-ups: a change stream on a collection of counters, and the debounced writes that feed it.

    insert, commit --> at most one write each 20 ms and process --> change stream of every scheduler

A wake-up is a hint that jobs may be due. Watching the jobs themselves would send every change of
every job to every scheduler; a counter for each kind of wake-up is changed as seldom as NOTIFY is
sent on PostgreSQL. Polling runs underneath, so a deaf watcher costs latency and never a job.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Final

import pymongo
from pymongo.asynchronous.change_stream import AsyncChangeStream
from pymongo.errors import PyMongoError

from app.db.mongo.connections import (
    COMMAND_TIMEOUT_SECONDS,
    DEFAULT_DATABASE,
    Client,
    Document,
    close_quietly,
    create_client,
    describe,
)
from app.domain.jobs import WakeUp
from app.loops import retry_delay_seconds
from app.telemetry import Telemetry

SIGNALS: Final = "signals"
SIGNAL_IDS: Final = {WakeUp.JOBS: "jobs", WakeUp.CONTROL: "control"}
# How long the server lets a question for changes wait: what proves that it still answers.
AWAIT_SECONDS: Final = 5.0
# A stream that ends sooner counts as a failed one.
STEADY_SECONDS: Final = 10.0
# New jobs wait for polling meanwhile, so not much longer than that.
RECONNECT_CAP_SECONDS: Final = 5.0
SIGNAL_INTERVAL_SECONDS: Final = 0.02
SIGNAL_SECONDS: Final = 2.0
FLUSH_SECONDS: Final = 0.5

_KINDS: Final = {name: wake_up for wake_up, name in SIGNAL_IDS.items()}
_FAULTS: Final = (OSError, TimeoutError, PyMongoError)


class WakeUpWatcher:
    """One change stream on a client of its own, renewed for as long as somebody iterates."""

    def __init__(self, url: str, telemetry: Telemetry) -> None:
        self._url = url
        self._telemetry = telemetry
        self.is_connected = False

    async def wake_ups(self) -> AsyncGenerator[WakeUp, None]:
        """Yield for every burst of signals, and everything after every reconnect."""
        failures = 0
        while True:
            began = time.monotonic()
            reason = "the server ended the stream"
            client = create_client(self._url, "haulage-watcher", 1, COMMAND_TIMEOUT_SECONDS)
            try:
                signals = client.get_default_database(DEFAULT_DATABASE)[SIGNALS]
                stream = await signals.watch(
                    [{"$project": {"documentKey": 1}}], max_await_time_ms=int(AWAIT_SECONDS * 1_000)
                )
                self.is_connected = True
                self._telemetry.emit("listener.connected", channels=",".join(_KINDS))
                yield WakeUp.JOBS | WakeUp.CONTROL
                while stream.alive:
                    if wake_up := await _burst(stream, client):
                        yield wake_up
            except _FAULTS as error:
                reason = describe(error)
            finally:
                self.is_connected = False
                await close_quietly(client)
            self._telemetry.emit("listener.disconnected", reason=reason)
            failures = 1 if time.monotonic() - began > STEADY_SECONDS else failures + 1
            await asyncio.sleep(retry_delay_seconds(failures, max_seconds=RECONNECT_CAP_SECONDS))


async def _burst(stream: "AsyncChangeStream[Document]", client: Client) -> WakeUp:
    """What the next signal and those that came with it are about; nothing after a quiet while.

    The driver resumes the stream by itself where a connection breaks or a primary is lost.
    """
    asking = asyncio.ensure_future(stream.try_next())
    try:
        # Not the driver's own time-out, under which it may lose a cancel (see `noticing_cancels`).
        async with asyncio.timeout(AWAIT_SECONDS + COMMAND_TIMEOUT_SECONDS):
            change = await asyncio.shield(asking)
    finally:
        if not asking.done():
            # Who is given up closes the stream first, and would wait for a server that is away;
            # without its client it does not. The server forgets the stream with the connection.
            await close_quietly(client)
            asking.cancel()
            await asyncio.wait({asking})
    return WakeUp(0) if change is None else _KINDS.get(change["documentKey"]["_id"], WakeUp(0))


class DebouncedSignal:
    """Writes one signal a kind for many wishes: the first at once, later ones each 20 ms.

    After the transaction that made jobs due, on a connection of its own: a wake-up must not queue
    up behind inserts. A lost one costs one poll interval, never a job.
    """

    def __init__(self, url: str) -> None:
        self._client: Client = create_client(url, "haulage-signal", 1, SIGNAL_SECONDS)
        self._wanted = WakeUp(0)
        self._task: asyncio.Task[None] | None = None

    def request(self, wake_up: WakeUp = WakeUp.JOBS) -> None:
        """Have schedulers woken soon; returns at once."""
        self._wanted |= wake_up
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send_wanted(), name="haulage-signal")

    async def close(self) -> None:
        """Send what is wished for, within a moment, and give the connection back."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=FLUSH_SECONDS)
            self._task.cancel()
            await asyncio.wait({self._task})
        await close_quietly(self._client)

    async def _send_wanted(self) -> None:
        signals = self._client.get_default_database(DEFAULT_DATABASE)[SIGNALS]
        while wanted := self._wanted:
            self._wanted = WakeUp(0)
            try:
                with pymongo.timeout(SIGNAL_SECONDS):
                    for wake_up in wanted:
                        await signals.update_one(
                            {"_id": SIGNAL_IDS[wake_up]}, {"$inc": {"sent": 1}}, upsert=True
                        )
            except _FAULTS:
                # Polling covers it, and the next insert tries again.
                return
            await asyncio.sleep(SIGNAL_INTERVAL_SECONDS)
