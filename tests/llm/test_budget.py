"""No call begins that could cost more than was allowed."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from llm.doubles import CHAT, MODEL

from app.pipelines.llm import BudgetExceededError, Chat, Completion, LLMSettings, Message
from app.pipelines.llm.budget import Budget, Cost, estimate, tokens_in

# CHAT's prompt is about 19 tokens and at most 23, its answer at most 100.
WORST_TOKENS = 123


def _budget(**bounds: Any) -> Budget:
    return Budget(LLMSettings("http://127.0.0.1:1/v1", MODEL, **bounds))


async def _spend(budget: Budget, prompt_tokens: int = 19, completion_tokens: int = 10) -> None:
    async with budget.reserved(CHAT) as reservation:
        completion = Completion("", "stop", None, prompt_tokens, completion_tokens)
        reservation.taken = budget.cost_of(completion)


@pytest.mark.parametrize(
    "bounds",
    [
        {"max_calls": 2},
        {"max_tokens_total": 2 * 29 + WORST_TOKENS - 1},
        {"max_cost": (2 * 29 + WORST_TOKENS - 1) / 1e6, "prompt_price": 1, "completion_price": 1},
    ],
    ids=["calls", "tokens", "cost"],
)
async def test_a_call_that_could_exceed_the_budget_does_not_begin(bounds: Any) -> None:
    budget = _budget(**bounds)
    await _spend(budget)
    await _spend(budget)
    with pytest.raises(BudgetExceededError, match="budget of"):
        await _spend(budget)
    assert budget.spent.calls == 2


async def test_a_budget_that_is_met_exactly_holds() -> None:
    budget = _budget(max_tokens_total=2 * 29 + WORST_TOKENS)
    for _ in range(3):
        await _spend(budget)
    assert budget.spent == Cost(3, 57, 30, 0.0)


async def test_without_bounds_everything_fits() -> None:
    budget = _budget()
    for _ in range(100):
        await _spend(budget, 10**6, 10**6)


async def test_a_call_waits_for_those_under_way_and_goes_on_when_they_were_cheap() -> None:
    budget = _budget(max_tokens_total=WORST_TOKENS + 29)
    async with budget.reserved(CHAT) as first:
        second = asyncio.ensure_future(_spend(budget))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not second.done()
        first.taken = Cost(1, 19, 10)
    await second
    assert budget.spent.calls == 2


async def test_a_call_that_waited_in_vain_is_refused() -> None:
    budget = _budget(max_tokens_total=WORST_TOKENS + 29)
    async with budget.reserved(CHAT) as first:
        second = asyncio.ensure_future(_spend(budget))
        await asyncio.sleep(0)
        first.taken = Cost(1, 19, 100)
    with pytest.raises(BudgetExceededError):
        await second


async def test_a_call_that_failed_gives_back_what_it_held() -> None:
    budget = _budget(max_calls=1)
    with pytest.raises(ConnectionError):
        async with budget.reserved(CHAT):
            raise ConnectionError
    await _spend(budget)
    assert budget.spent.calls == 1


async def test_a_cancelled_call_gives_back_what_it_held() -> None:
    budget = _budget(max_calls=1)

    async def hold() -> None:
        async with budget.reserved(CHAT):
            await asyncio.Event().wait()

    holding = asyncio.ensure_future(hold())
    waiting = asyncio.ensure_future(_spend(budget))
    await asyncio.sleep(0)
    holding.cancel()
    await asyncio.wait_for(waiting, 5)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("x" * 3_000, 1_000), ("\u505c" * 3_000, 3_000), ("\u0e01" * 3_000, 3_000)],
    ids=["English", "Chinese", "Thai"],
)
async def test_a_prompt_is_reserved_in_the_tokens_of_its_script(text: str, tokens: int) -> None:
    async with _budget().reserved(Chat((Message("user", text),), None, 100)) as reservation:
        assert reservation.worst == Cost(1, tokens + 4, 100)


async def test_the_schema_is_reserved_as_part_of_the_prompt() -> None:
    schema = {"type": "json_schema", "json_schema": {"enum": ["a name"] * 1_000}}
    async with _budget().reserved(replace(CHAT, response_format=schema)) as reservation:
        assert reservation.worst.prompt_tokens > 3_000


async def test_where_a_prompt_had_more_tokens_than_were_reserved_more_is_reserved() -> None:
    budget = _budget()
    await _spend(budget, prompt_tokens=46)
    async with budget.reserved(CHAT) as reservation:
        assert 30 <= reservation.worst.prompt_tokens <= 46
    await _spend(budget, prompt_tokens=10**6)  # a lie: no text has more tokens than bytes
    async with budget.reserved(CHAT) as reservation:
        assert reservation.worst.prompt_tokens == 8 + 3 * 15


def test_other_scripts_are_counted_by_the_character() -> None:
    assert tokens_in(["\u505c" * 100 + "x" * 100]) == 4 + 100 + 25


def test_an_estimate_is_made_of_characters_and_prices() -> None:
    settings = LLMSettings("http://x", MODEL, prompt_price=2.0, completion_price=10.0)
    expected = estimate(settings, calls=25, prompt_characters=4_000, answer_characters=400)
    assert expected == Cost(25, 25 * 1_004, 2_500, (25_100 * 2 + 25_000) / 1e6)
    assert tokens_in(["", "abcde"]) == 4 + 4 + 2


async def test_an_estimate_is_held_against_the_budget_before_the_run() -> None:
    budget = _budget(max_calls=80)
    budget.check(Cost(calls=80))
    with pytest.raises(BudgetExceededError):
        budget.check(Cost(calls=81))


async def test_a_large_call_that_does_not_fit_bars_no_smaller_one() -> None:
    budget = _budget(max_tokens_total=3_000)
    with pytest.raises(BudgetExceededError) as caught:
        async with budget.reserved(replace(CHAT, max_output_tokens=3_000)):
            pass
    assert not caught.value.is_final
    await _spend(budget)
    assert budget.spent.calls == 1


async def test_a_budget_that_holds_no_question_at_all_is_spent() -> None:
    budget = _budget(max_tokens_total=2_048 + 28)
    await _spend(budget)
    with pytest.raises(BudgetExceededError) as caught:
        async with budget.reserved(replace(CHAT, max_output_tokens=2_048)):
            pass
    assert caught.value.is_final


async def test_calls_that_wait_begin_in_their_order() -> None:
    budget = _budget(max_tokens_total=WORST_TOKENS * 20)
    begun = []

    async def call(number: int) -> None:
        async with budget.reserved(CHAT) as reservation:
            begun.append(number)
            await asyncio.sleep(0)
            reservation.taken = Cost(1, 19, 0)

    await asyncio.gather(*map(call, range(60)))
    assert begun == list(range(60))
