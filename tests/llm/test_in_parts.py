"""Batches whose answer is rejected are halved; one bad item costs no other its result."""

import asyncio
from collections.abc import Sequence

import pytest

from app.pipelines.llm import AnswerRejectedError, BudgetExceededError, LLMError, in_parts
from app.pipelines.llm.parts import AT_ONCE


class Work:
    """Gives ten times each item; a batch that holds one of `bad` is rejected."""

    def __init__(self, *bad: int) -> None:
        self.bad = set(bad)
        self.batches: list[list[int]] = []

    async def __call__(self, items: Sequence[int]) -> list[str]:
        self.batches.append(list(items))
        if self.bad & set(items):
            raise AnswerRejectedError(["an id is missing"])
        return [str(item * 10) for item in items]


def _failed(item: int, problems: list[str]) -> str:
    return f"{item}: {problems[0]}"


async def test_results_come_in_the_order_of_the_items() -> None:
    work = Work()
    items = list(range(7))
    assert await in_parts(items, 3, work, _failed) == [str(item * 10) for item in items]
    assert work.batches == [[0, 1, 2], [3, 4, 5], [6]]
    assert await in_parts([], 3, work, _failed) == []


async def test_a_rejected_batch_is_halved_down_to_the_bad_item() -> None:
    work = Work(5)
    results = await in_parts(range(8), 8, work, _failed)
    assert results == ["0", "10", "20", "30", "40", "5: an id is missing", "60", "70"]
    assert work.batches == [[*range(8)], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [4], [5], [6, 7]]


async def test_where_everything_is_rejected_every_item_fails_visibly() -> None:
    results = await in_parts(range(5), 4, Work(*range(5)), _failed)
    assert results == [f"{item}: an id is missing" for item in range(5)]


async def test_an_error_ends_the_others_too() -> None:
    ended = []

    async def work(items: Sequence[int]) -> list[str]:
        if 3 in items:
            raise BudgetExceededError("the budget is used up")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(items[0])
        return []

    with pytest.raises(BudgetExceededError):
        await in_parts(range(6), 1, work, _failed)
    assert sorted(ended) == [0, 1, 2, 4, 5]


async def test_a_loss_may_cost_only_what_is_not_finished() -> None:
    async def work(items: Sequence[int]) -> list[str]:
        if items[0] >= 4:
            raise BudgetExceededError("the budget is used up")
        return [str(item) for item in items]

    def lost(item: int, error: LLMError) -> str:
        return f"{item} lost: {error}"

    results = await in_parts(range(6), 2, work, _failed, on_lost=lost)
    assert results[:4] == ["0", "1", "2", "3"]
    assert results[4:] == [f"{item} lost: the budget is used up" for item in (4, 5)]


async def test_work_that_loses_an_item_is_a_mistake() -> None:
    async def work(items: Sequence[int]) -> list[str]:
        return [str(item) for item in items[1:]]

    with pytest.raises(ValueError, match="1 results for 2 items"):
        await in_parts(range(2), 2, work, _failed)


async def test_few_batches_are_begun_at_once() -> None:
    under_way = most = 0

    async def work(items: Sequence[int]) -> list[str]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.001 * (items[0] % 3))
        under_way -= 1
        return [str(item) for item in items]

    results = await in_parts(range(1_000), 1, work, _failed)
    assert results == [str(item) for item in range(1_000)]
    assert most == AT_ONCE


async def test_nothing_to_ask_about_is_nothing() -> None:
    assert await in_parts([], 3, Work(), _failed) == []
