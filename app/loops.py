"""The one way to run something again and again until stopped: wait, act, report, never die.

    start() --> [ tick() --> wait for wake() or the interval ] --> ... --> stop()
                    |
                    '-- raised: report, back off with jitter up to the interval, go on;
                        the first success afterwards is reported too

A loop starts once, stops idempotently and holds nothing else: its owner's `_x_once` does the work
and can be called from tests without any loop.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

from app.telemetry import Telemetry

MAX_BACKOFF_SECONDS: Final = 30.0
CANCEL_SECONDS: Final = 0.2


def jittered_seconds(ceiling_seconds: float) -> float:
    """A random delay between half of `ceiling_seconds` and all of it."""
    return ceiling_seconds * random.uniform(0.5, 1.0)  # noqa: S311  spreads load, no secret


def retry_delay_seconds(
    failures: int, first_seconds: float = 0.2, max_seconds: float = MAX_BACKOFF_SECONDS
) -> float:
    """Jittered exponential delay after the n-th failure in a row, at most `max_seconds`."""
    doublings = min(max(failures - 1, 0), 16)
    return jittered_seconds(min(max_seconds, first_seconds * 2.0**doublings))


class Companion(Protocol):
    """Work that shares somebody's event loop and life, and nothing else."""

    def start(self) -> None:
        """Begin on the running event loop."""

    async def stop(self) -> None:
        """End soon, within some tenths of a second; else it is cancelled."""

    async def close(self) -> None:
        """Give up what it holds, as soon; it may be started again."""


class Backoff:
    """A pause that grows with failures in a row and ends with the first success."""

    def __init__(self, first_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._failures = 0
        self._pause_ends = 0.0

    @property
    def is_pausing(self) -> bool:
        """Whether the last failure is too recent to try again."""
        return time.monotonic() < self._pause_ends

    def note_failure(self) -> None:
        """Begin a pause, longer than the one before."""
        self._failures += 1
        self._pause_ends = time.monotonic() + retry_delay_seconds(
            self._failures, self._first_seconds
        )

    def note_success(self) -> None:
        """The next failure begins with the shortest pause again."""
        self._failures = 0


class PeriodicLoop:
    """Runs `tick` at once, then at each `wake()` and at least every `interval_seconds`.

    Args:
        tick: one pass of work; whatever it raises is reported and the loop goes on.
        min_gap_seconds: wake-ups closer together than this are merged into one pass.
        max_retry_seconds: longest pause after a failure; the interval bounds it too.
    """

    def __init__(
        self,
        name: str,
        tick: Callable[[], Awaitable[object]],
        interval_seconds: float,
        telemetry: Telemetry,
        *,
        min_gap_seconds: float = 0.0,
        max_retry_seconds: float = MAX_BACKOFF_SECONDS,
    ) -> None:
        self.name = name
        self._tick = tick
        self._interval_seconds = interval_seconds
        self._min_gap_seconds = min_gap_seconds
        self._max_retry_seconds = max_retry_seconds
        self._telemetry = telemetry
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self.ticks = 0
        self._pass_began: float | None = None

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The running task, None before start and after stop."""
        return self._task

    @property
    def pass_seconds(self) -> float:
        """How long the pass under way has taken so far, 0 between two of them."""
        return 0.0 if self._pass_began is None else time.monotonic() - self._pass_began

    @property
    def is_dead(self) -> bool:
        """Whether it has ended though nobody stopped it."""
        return self._task is not None and self._task.done()

    def start(self) -> asyncio.Task[None]:
        """Start the loop on the running event loop; a second start returns the same task."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self.run(), name=f"haulage-{self.name}")
        return self._task

    def wake(self) -> None:
        """Ask for a pass soon; merged with other wishes. Call from the loop's own thread."""
        self._wake.set()

    async def stop(self, timeout_seconds: float = 2.0) -> None:
        """End after the pass under way; a pass that hangs is cancelled after the time-out."""
        self._stopping.set()
        # A start from here on is a run of its own and must not revive the one that ends.
        self._stopping = asyncio.Event()
        self._wake.set()
        task, self._task = self._task, None
        if task is None or task is asyncio.current_task():
            return
        _done, pending = await asyncio.wait({task}, timeout=timeout_seconds)
        if pending:
            task.cancel()
            # A pass may swallow its cancellation; shutdown does not wait for it for ever.
            await asyncio.wait({task}, timeout=CANCEL_SECONDS)

    def run(self) -> Coroutine[Any, Any, None]:
        """The loop itself, for an owner that keeps the task under its own name."""
        # Bound here: a stop may come before the first step.
        return self._run(self._stopping)

    async def _run(self, stopping: asyncio.Event) -> None:
        if not stopping.is_set():
            self._task = asyncio.current_task()
        failures = 0
        failing_since = 0.0
        while not stopping.is_set():
            self._wake.clear()
            began = self._pass_began = time.monotonic()
            try:
                await self._tick()
                if failures:
                    seconds = round(time.monotonic() - failing_since, 1)
                    self._telemetry.emit(
                        "loop.recovered", loop=self.name, failures=failures, seconds=seconds
                    )
                failures = 0
            except Exception as error:  # noqa: BLE001  a loop survives everything but its own end
                failures += 1
                failing_since = began if failures == 1 else failing_since
                self._telemetry.emit(
                    "loop.failed", loop=self.name, error=repr(error), failures=failures
                )
            finally:
                self._pass_began = None
            self.ticks += 1
            if failures:
                # Never longer than when all is well, or an outage would outlast itself.
                delay = retry_delay_seconds(failures, max_seconds=self._max_retry_seconds)
                delay = min(delay, self._interval_seconds)
                await self._pause(stopping, delay)
            elif not stopping.is_set():
                await self._wait_for_wake()
                await self._pause(stopping, self._min_gap_seconds - (time.monotonic() - began))

    async def _wait_for_wake(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._interval_seconds):
                await self._wake.wait()

    @staticmethod
    async def _pause(stopping: asyncio.Event, seconds: float) -> None:
        # Ended by stop(), not by wake(): that is what it is for.
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await stopping.wait()
