"""Who goes to the store together, and that nobody's mistake or leaving is another's."""

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import pytest

from app.db.grouping import (
    GROUPS_IN_FLIGHT,
    MAX_GROUP_BYTES,
    MAX_GROUP_ROWS,
    MAX_MEMBER_BYTES,
    Grouping,
)
from app.domain.errors import DatabaseUnavailableError

SMALL = 100


class ScriptedStore:
    """Holds every call until it is let go; answers each item with itself."""

    def __init__(self, *, is_held: bool = True) -> None:
        self.groups: list[list[Any]] = []
        self.refused: set[Any] = set()
        self.most_at_once = 0
        self.at_once = 0
        self._is_open = asyncio.Event()
        self._has_come = asyncio.Condition()
        if not is_held:
            self._is_open.set()

    async def __call__(self, items: Sequence[Any]) -> list[Any]:
        self.groups.append(list(items))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        async with self._has_come:
            self._has_come.notify_all()
        try:
            await self._is_open.wait()
        finally:
            self.at_once -= 1
        if bad := self.refused.intersection(items):
            raise ValueError(f"refused: {bad}")
        return [KeyError(item) if item == "reused" else item for item in items]

    async def reached(self, calls: int) -> None:
        async with asyncio.timeout(5.0), self._has_come:
            await self._has_come.wait_for(lambda: len(self.groups) >= calls)

    def let_go(self) -> None:
        self._is_open.set()


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore()


@pytest.fixture
def groups(store: ScriptedStore) -> Grouping[Any, Any]:
    return Grouping(store)


async def busy(groups: Grouping[Any, Any], store: ScriptedStore) -> list[asyncio.Task[Any]]:
    """Submissions, one each, that keep every place of the store busy."""
    tasks = []
    for n in range(GROUPS_IN_FLIGHT):
        tasks.append(asyncio.create_task(groups.submit(f"busy {n}", SMALL)))
        await store.reached(n + 1)
    return tasks


def submitted(
    groups: Grouping[Any, Any], items: Sequence[Any], size_bytes: int = SMALL
) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(groups.submit(item, size_bytes)) for item in items]


async def test_one_that_is_alone_goes_at_once(
    groups: Grouping[Any, Any], store: ScriptedStore
) -> None:
    task = asyncio.create_task(groups.submit("alone", SMALL))
    await store.reached(1)

    store.let_go()
    assert await task == "alone"
    assert store.groups == [["alone"]]


async def test_those_of_one_moment_go_together(
    groups: Grouping[Any, Any], store: ScriptedStore
) -> None:
    store.let_go()

    assert await asyncio.gather(*submitted(groups, range(10))) == list(range(10))
    assert store.groups == [list(range(10))]


async def test_those_that_come_while_the_store_is_busy_go_together_in_their_order(
    groups: Grouping[Any, Any], store: ScriptedStore
) -> None:
    before = await busy(groups, store)
    tasks = submitted(groups, range(MAX_GROUP_ROWS + 10))
    await asyncio.sleep(0)
    assert len(store.groups) == GROUPS_IN_FLIGHT

    store.let_go()
    assert await asyncio.gather(*tasks) == list(range(MAX_GROUP_ROWS + 10))
    await asyncio.gather(*before)
    assert store.groups[GROUPS_IN_FLIGHT:] == [
        list(range(MAX_GROUP_ROWS)),
        list(range(MAX_GROUP_ROWS, MAX_GROUP_ROWS + 10)),
    ]
    assert store.most_at_once == GROUPS_IN_FLIGHT


async def test_a_group_is_bounded_in_bytes(
    groups: Grouping[Any, Any], store: ScriptedStore
) -> None:
    before = await busy(groups, store)
    tasks = submitted(groups, range(40), MAX_MEMBER_BYTES)

    store.let_go()
    await asyncio.gather(*before, *tasks)
    sizes = [len(group) * MAX_MEMBER_BYTES for group in store.groups[GROUPS_IN_FLIGHT:]]
    assert max(sizes) == MAX_GROUP_BYTES
    assert sum(sizes) == 40 * MAX_MEMBER_BYTES


async def test_a_large_one_neither_waits_for_a_group_nor_takes_others_along(
    groups: Grouping[Any, Any], store: ScriptedStore
) -> None:
    before = await busy(groups, store)
    tasks = submitted(groups, ["large"], MAX_MEMBER_BYTES + 1) + submitted(groups, ["small"])
    await store.reached(GROUPS_IN_FLIGHT + 1)

    assert store.groups[-1] == ["large"]
    store.let_go()
    assert await asyncio.gather(*tasks) == ["large", "small"]
    await asyncio.gather(*before)


async def test_each_gets_the_error_of_its_own(
    groups: Grouping[Any, Any], store: ScriptedStore
) -> None:
    store.let_go()

    answers = await asyncio.gather(*submitted(groups, [1, "reused", 2]), return_exceptions=True)

    assert answers[::2] == [1, 2]
    assert isinstance(answers[1], KeyError)
    assert len(store.groups) == 1


async def test_a_group_that_fails_is_taken_apart(
    groups: Grouping[Any, Any], store: ScriptedStore
) -> None:
    store.let_go()
    store.refused = {3}

    answers = await asyncio.gather(*submitted(groups, range(6)), return_exceptions=True)

    assert [answer for answer in answers if not isinstance(answer, ValueError)] == [0, 1, 2, 4, 5]
    assert isinstance(answers[3], ValueError)
    assert sorted(map(len, store.groups)) == [1] * 6 + [6]


async def test_whoever_leaves_before_the_group_goes_stores_nothing_and_harms_nobody(
    groups: Grouping[Any, Any], store: ScriptedStore
) -> None:
    before = await busy(groups, store)
    tasks = submitted(groups, range(5))
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.wait({tasks[2]})

    store.let_go()
    assert await asyncio.gather(*tasks[:2], *tasks[3:]) == [0, 1, 3, 4]
    await asyncio.gather(*before)
    assert store.groups[-1] == [0, 1, 3, 4]


@pytest.mark.parametrize("fails", [False, True])
async def test_whoever_leaves_while_the_group_is_stored_harms_nobody(
    groups: Grouping[Any, Any], store: ScriptedStore, *, fails: bool
) -> None:
    store.refused = {3} if fails else set()
    tasks = submitted(groups, range(5))
    await store.reached(1)
    tasks[2].cancel()
    await asyncio.wait({tasks[2]})

    store.let_go()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers[2], asyncio.CancelledError)
    assert [answers[n] for n in (0, 1, 4)] == [0, 1, 4]
    # Nobody asks for it any more.
    assert [2] not in store.groups


async def test_one_that_works_for_a_single_caller_ends_with_him(
    groups: Grouping[Any, Any], store: ScriptedStore
) -> None:
    [task] = submitted(groups, ["large"], MAX_MEMBER_BYTES + 1)
    await store.reached(1)
    task.cancel()
    await asyncio.wait({task})

    for _ in range(3):
        await asyncio.sleep(0)
    assert store.at_once == 0


async def test_flushing_waits_for_what_was_submitted(
    groups: Grouping[Any, Any], store: ScriptedStore
) -> None:
    before = await busy(groups, store)
    tasks = submitted(groups, range(3))
    await asyncio.sleep(0)
    flushing = asyncio.create_task(groups.flush(5.0))
    await asyncio.sleep(0)
    assert not flushing.done()

    store.let_go()
    await flushing
    assert all(task.done() for task in tasks + before)
    assert store.groups[-1] == [0, 1, 2]


async def test_flushing_is_bounded_and_tells_those_that_wait(
    groups: Grouping[Any, Any], store: ScriptedStore
) -> None:
    before = await busy(groups, store)
    tasks = submitted(groups, range(3)) + submitted(groups, ["large"], MAX_MEMBER_BYTES + 1)
    await store.reached(GROUPS_IN_FLIGHT + 1)

    await groups.flush(0.01)

    answers = await asyncio.gather(*before, *tasks, return_exceptions=True)
    assert all(isinstance(answer, DatabaseUnavailableError) for answer in answers)
    # As good as new.
    store.let_go()
    assert await groups.submit("later", SMALL) == "later"


async def test_flushing_waits_for_nobody_when_all_have_left(
    groups: Grouping[Any, Any], store: ScriptedStore
) -> None:
    tasks = [*await busy(groups, store), *submitted(groups, range(3))]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)

    async with asyncio.timeout(5.0):
        await groups.flush(600.0)
    assert not groups._tasks


async def test_nothing_is_left_of_many_that_come_and_go(groups: Grouping[Any, Any]) -> None:
    store = ScriptedStore(is_held=False)
    groups = Grouping(store)
    for round_no in range(20):
        tasks = submitted(groups, range(50), SMALL if round_no % 2 else MAX_MEMBER_BYTES + 1)
        await asyncio.sleep(0)
        for task in tasks[:: 1 + round_no % 3]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    while groups._tasks:
        await asyncio.wait(groups._tasks)
    assert not groups._queue
    assert not groups._unanswered
    assert groups._in_flight == 0


_CALLER: ContextVar[str] = ContextVar("caller", default="nobody")


async def test_a_group_runs_in_the_context_of_none_of_its_callers() -> None:
    """Whatever they keep there, such as a driver's deadline, would pass from group to group."""
    seen: list[str] = []

    async def store(items: Sequence[str]) -> list[str]:
        seen.append(_CALLER.get())
        if len(items) > 1:
            raise ValueError("one at a time")
        return list(items)

    grouping: Grouping[str, str] = Grouping(store)

    async def submit(caller: str) -> None:
        _CALLER.set(caller)
        await grouping.submit(caller, SMALL)
        await grouping.submit(caller, MAX_MEMBER_BYTES + 1)

    await asyncio.gather(*(submit(f"caller {n}") for n in range(2 * MAX_GROUP_ROWS)))

    assert set(seen) == {"nobody"}
