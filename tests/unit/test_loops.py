"""`PeriodicLoop`: starts once, stops at any moment, survives everything in between."""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest
from support.waiting import eventually

from app.loops import (
    MAX_BACKOFF_SECONDS,
    Backoff,
    PeriodicLoop,
    jittered_seconds,
    retry_delay_seconds,
)
from app.telemetry import Event, Telemetry

# Longer than any test: who waits for it has not been woken.
NEVER_SECONDS = 3_600.0


class Ticks:
    """A tick that counts, and does next what the test has told it."""

    def __init__(self) -> None:
        self.count = 0
        self.running = 0
        self.most_at_once = 0
        self.then: Callable[[], Awaitable[None]] | None = None

    async def __call__(self) -> None:
        self.count += 1
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            if self.then is not None:
                await self.then()
        finally:
            self.running -= 1

    async def reach(self, count: int) -> None:
        async def is_reached() -> bool:
            return self.count >= count

        await eventually(is_reached, f"{count} ticks")


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
async def make(
    ticks: Ticks, events: list[Event]
) -> AsyncGenerator[Callable[..., PeriodicLoop], None]:
    """Makes loops around the ticks; none of their tasks may be left."""

    def loop(interval_seconds: float = NEVER_SECONDS, **options: float) -> PeriodicLoop:
        return PeriodicLoop("here", ticks, interval_seconds, Telemetry([events.append]), **options)

    yield loop
    await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() if task.get_name() == "haulage-here"]
    assert left == []


Make = Callable[..., PeriodicLoop]


async def test_the_first_pass_comes_at_once_and_the_next_with_the_interval(
    make: Make, ticks: Ticks
) -> None:
    loop = make(0.005)
    loop.start()

    await ticks.reach(4)

    await loop.stop()
    assert loop.ticks == ticks.count
    assert loop.task is None


async def test_a_second_start_gives_the_same_task(make: Make, ticks: Ticks) -> None:
    loop = make()
    tasks = {loop.start() for _ in range(5)}
    await ticks.reach(1)
    tasks.add(loop.start())

    await loop.stop()

    assert len(tasks) == 1
    assert ticks.count == 1


async def test_stopping_is_idempotent_and_harmless_before_the_start(
    make: Make, ticks: Ticks
) -> None:
    loop = make()
    await loop.stop()
    loop.start()
    await ticks.reach(1)
    await asyncio.gather(*(loop.stop() for _ in range(5)))
    await loop.stop()

    assert ticks.count == 1


async def test_a_loop_that_is_stopped_before_its_first_step_ends_at_once(make: Make) -> None:
    loop = make()
    task = loop.start()

    async with asyncio.timeout(10.0):
        await loop.stop(NEVER_SECONDS)

    assert task.done()
    assert not task.cancelled()


async def test_a_stopped_loop_starts_again(make: Make, ticks: Ticks) -> None:
    loop = make()
    for count in range(1, 5):
        loop.start()
        await ticks.reach(count)
        await loop.stop()

    assert ticks.count == 4


async def test_a_start_during_a_stop_does_not_revive_what_ends(make: Make, ticks: Ticks) -> None:
    gate = asyncio.Event()
    ticks.then = gate.wait  # type: ignore[assignment]
    loop = make()
    first = loop.start()
    await ticks.reach(1)
    stopping = asyncio.create_task(loop.stop(NEVER_SECONDS))
    await asyncio.sleep(0)
    second = loop.start()
    gate.set()

    async with asyncio.timeout(10.0):
        await stopping

    assert first.done()
    assert not second.done()
    await loop.stop()


async def test_a_wake_brings_the_next_pass(make: Make, ticks: Ticks) -> None:
    loop = make()
    loop.start()
    for count in range(1, 6):
        await ticks.reach(count)
        loop.wake()
    await ticks.reach(6)

    await loop.stop()


async def test_wakes_during_a_pass_give_one_more_pass(make: Make, ticks: Ticks) -> None:
    gate = asyncio.Event()
    ticks.then = gate.wait  # type: ignore[assignment]
    loop = make()
    loop.start()
    await ticks.reach(1)
    for _ in range(100):
        loop.wake()
    gate.set()
    await ticks.reach(2)
    for _ in range(20):
        await asyncio.sleep(0)

    assert ticks.count == 2
    await loop.stop()


async def test_wakes_close_together_are_merged(make: Make, ticks: Ticks) -> None:
    loop = make(min_gap_seconds=0.05)
    loop.start()
    await ticks.reach(1)
    woken = 0
    while ticks.count < 4:
        loop.wake()
        woken += 1
        await asyncio.sleep(0.001)

    await loop.stop()
    assert woken > 2 * ticks.count


async def test_passes_never_overlap(make: Make, ticks: Ticks) -> None:
    async def several_steps() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    ticks.then = several_steps
    loop = make(0.0001)
    loop.start()
    while ticks.count < 20:
        loop.wake()
        await asyncio.sleep(0)

    await loop.stop()
    assert ticks.most_at_once == 1


async def test_a_failing_pass_is_told_and_tried_again_with_growing_pauses(
    make: Make, ticks: Ticks, events: list[Event]
) -> None:
    async def fail() -> None:
        raise RuntimeError("no")

    ticks.then = fail
    loop = make(0.01)
    loop.start()
    await ticks.reach(4)
    ticks.then = None
    await ticks.reach(6)
    await loop.stop()

    told = [(event.name, event.fields["loop"], event.fields["failures"]) for event in events]
    assert told[:4] == [("loop.failed", "here", n) for n in range(1, 5)]
    assert "RuntimeError" in events[0].fields["error"]
    assert len(told) <= 5


async def test_the_pause_after_a_failure_is_never_longer_than_the_interval(
    make: Make, ticks: Ticks
) -> None:
    async def fail() -> None:
        raise RuntimeError("no")

    ticks.then = fail
    loop = make(0.001)
    loop.start()

    # With pauses that double without end this would take hours.
    await ticks.reach(40)

    await loop.stop()


async def test_a_pause_ends_when_the_loop_is_stopped(make: Make, ticks: Ticks) -> None:
    async def fail() -> None:
        raise RuntimeError("no")

    ticks.then = fail
    loop = make()
    loop.start()
    await ticks.reach(3)

    async with asyncio.timeout(10.0):
        await loop.stop(NEVER_SECONDS)


async def test_a_hanging_pass_is_cancelled_when_the_loop_is_stopped(
    make: Make, ticks: Ticks
) -> None:
    ticks.then = asyncio.Event().wait  # type: ignore[assignment]
    loop = make()
    task = loop.start()
    await ticks.reach(1)

    await loop.stop(timeout_seconds=0.01)

    assert task.cancelled()
    assert ticks.running == 0


async def test_stopping_is_bounded_when_a_pass_swallows_its_cancellation(
    make: Make, ticks: Ticks
) -> None:
    gate = asyncio.Event()

    async def stubborn() -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    ticks.then = stubborn
    loop = make()
    task = loop.start()
    await ticks.reach(1)

    async with asyncio.timeout(10.0):
        await loop.stop(timeout_seconds=0.01)
    assert not task.done()

    gate.set()
    await asyncio.wait({task}, timeout=10.0)
    assert task.done()


async def test_a_pass_may_stop_its_own_loop(make: Make, ticks: Ticks) -> None:
    loop = make(0.001)
    ticks.then = loop.stop
    task = loop.start()

    async with asyncio.timeout(10.0):
        await task

    assert ticks.count == 1


async def test_an_owner_may_run_the_loop_in_a_task_of_its_own(make: Make, ticks: Ticks) -> None:
    loop = make()
    task = asyncio.create_task(loop.run())
    await ticks.reach(1)
    assert loop.task is task

    await loop.stop()

    assert task.done()


async def test_two_hundred_starts_and_stops_at_once_end_in_peace(make: Make, ticks: Ticks) -> None:
    chance = random.Random(3)  # noqa: S311  the same order in every run
    loops = [make(0.001) for _ in range(5)]

    async def meddle(loop: PeriodicLoop) -> None:
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
        if chance.random() < 0.5:
            loop.start()
        else:
            await loop.stop(NEVER_SECONDS)

    async with asyncio.timeout(20.0):
        await asyncio.gather(*(meddle(chance.choice(loops)) for _ in range(200)))
        await asyncio.gather(*(loop.stop(NEVER_SECONDS) for loop in loops))

    count = ticks.count
    await asyncio.sleep(0.01)
    assert ticks.count == count


async def test_the_first_success_after_failures_is_told_once() -> None:
    events: list[Event] = []
    results = iter([AssertionError(), AssertionError(), None, None])
    done = asyncio.Event()

    async def tick() -> None:
        result = next(results, None)
        if result is not None:
            raise result
        if loop.ticks >= 3:
            done.set()

    loop = PeriodicLoop("here", tick, 0.01, Telemetry([events.append]))
    loop.start()
    async with asyncio.timeout(10.0):
        await done.wait()
    await loop.stop()

    assert [event.name for event in events] == ["loop.failed", "loop.failed", "loop.recovered"]
    assert (events[-1].fields["loop"], events[-1].fields["failures"]) == ("here", 2)


@pytest.mark.parametrize("failures", [-1, 0, 1, 2, 5, 100, 10**9])
def test_retry_delays_are_bounded_for_any_number_of_failures(failures: int) -> None:
    for _ in range(50):
        assert 0.1 <= retry_delay_seconds(failures) <= MAX_BACKOFF_SECONDS


def test_jitter_spreads_between_half_and_all() -> None:
    delays = [jittered_seconds(2.0) for _ in range(200)]

    assert 1.0 <= min(delays) < 1.2
    assert 1.8 < max(delays) <= 2.0


def test_a_pause_grows_with_failures_in_a_row_and_begins_anew_after_a_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("app.loops.time.monotonic", lambda: now)
    monkeypatch.setattr("app.loops.random.uniform", lambda _low, high: high)
    backoff = Backoff(first_seconds=1.0)
    assert not backoff.is_pausing

    for expected in (1.0, 2.0, 4.0):
        backoff.note_failure()
        now += expected - 0.1
        assert backoff.is_pausing
        now += 0.2
        assert not backoff.is_pausing

    backoff.note_success()
    backoff.note_failure()
    now += 1.1
    assert not backoff.is_pausing
