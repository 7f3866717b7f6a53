"""What a job's calls may cost, known before each call and not only after it.

A call under way is reserved at its worst: its prompt in the costliest script and all of the output
that it may have. A call that fits only once others have turned out cheaper waits for them.
"""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from app.domain.sharing import CallUsage
from app.pipelines.llm.interface import (
    BudgetExceededError,
    Chat,
    Completion,
    LLMSettings,
    LLMUnavailableError,
)

# Of English text; code has more tokens, and other scripts about one per character. No tokenizer
# fits every model, and the common one downloads its vocabulary at the first use.
CHARACTERS_PER_TOKEN: Final = 4
# What is reserved: one token per character of the scripts that have the most, and a third more than
# is usual of English. No tokenizer that falls back to bytes has more than one for each of them.
_BYTES_PER_TOKEN: Final = 3
_TOKENS_PER_MESSAGE: Final = 4
_PRICED_TOKENS: Final = 1_000_000


class Bounds(Protocol):
    """What a budget is made of; see LLMSettings."""

    @property
    def max_calls(self) -> int | None: ...  # noqa: D102
    @property
    def max_tokens_total(self) -> int | None: ...  # noqa: D102
    @property
    def max_cost(self) -> float | None: ...  # noqa: D102
    @property
    def prompt_price(self) -> float: ...  # noqa: D102
    @property
    def completion_price(self) -> float: ...  # noqa: D102
    @property
    def max_output_tokens(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Cost:
    """Calls and what they take; made before a run as an estimate, afterwards as a fact."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cost + other.cost,
        )

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(
            self.calls - other.calls,
            self.prompt_tokens - other.prompt_tokens,
            self.completion_tokens - other.completion_tokens,
            self.cost - other.cost,
        )


def tokens_in(texts: Iterable[str]) -> int:
    """About how many tokens these messages' texts are."""
    return sum(_TOKENS_PER_MESSAGE + _tokens_of(text) for text in texts)


def _tokens_of(text: str) -> int:
    plain = len(text.encode("ascii", "ignore"))
    return len(text) - plain + -(-plain // CHARACTERS_PER_TOKEN)


def price(settings: Bounds, prompt_tokens: int, completion_tokens: int) -> float:
    """What so many tokens cost, in the currency of the settings."""
    return (
        prompt_tokens * settings.prompt_price + completion_tokens * settings.completion_price
    ) / _PRICED_TOKENS


def estimate(
    settings: LLMSettings, calls: int, prompt_characters: int, answer_characters: int
) -> Cost:
    """What `calls` will take, each with about so many characters to read and to write."""
    prompt_tokens = calls * tokens_in(["x" * prompt_characters])
    completion_tokens = calls * -(-answer_characters // CHARACTERS_PER_TOKEN)
    return Cost(
        calls, prompt_tokens, completion_tokens, price(settings, prompt_tokens, completion_tokens)
    )


class Budget:
    """Counts what calls take and lets none begin that could exceed the settings' bounds.

    How many tokens a prompt has is known only once the server has counted it: where one had more
    than was reserved, more is reserved from then on.
    """

    def __init__(self, settings: Bounds) -> None:
        self._settings = settings
        self.spent = Cost()
        self._reserved = Cost()
        self._surplus = 1.0
        # The call whose turn it is waits for room, the others for their turn: nobody is woken in
        # vain, and they begin in their order.
        self._turn = asyncio.Lock()
        self._settled = asyncio.Event()

    def note_spent(self, usage: CallUsage) -> None:
        """Count what was spent before, by an earlier attempt."""
        self.spent += Cost(usage.calls, usage.prompt_tokens, usage.completion_tokens, usage.cost)

    def check(self, expected: Cost) -> None:
        """Raise BudgetExceededError where `expected`, added to what is spent, is too much."""
        if reason := self._reason_against(self.spent + expected):
            raise BudgetExceededError(reason, is_final=self._is_spent())

    def reserved(self, chat: Chat) -> AbstractAsyncContextManager["Reservation"]:
        """Hold what `chat` may take at most, until it is known what it took; see `held`."""
        return self.held((message.content for message in chat.messages), chat)

    @asynccontextmanager
    async def held(
        self, texts: Iterable[str], chat: Chat | None = None
    ) -> AsyncIterator["Reservation"]:
        """Hold what a request with these texts may take at most, until it is known what it took.

        Raises:
            BudgetExceededError: it does not fit, also when nothing else is under way.
        """
        reservation = Reservation(self, self._worst_of(texts, chat))
        async with self._turn:
            while reason := self._reason_against(self.spent + self._reserved + reservation.worst):
                if not self._reserved.calls:
                    raise BudgetExceededError(reason, is_final=self._is_spent())
                self._settled.clear()
                await self._settled.wait()
            self._reserved += reservation.worst
        try:
            yield reservation
        finally:
            # Without a suspension between them: a cancelled call must give back what it held.
            self._reserved -= reservation.worst
            if reservation.taken is not None:
                self.spent += reservation.taken
                self._learn(reservation.worst.prompt_tokens, reservation.taken.prompt_tokens)
            self._settled.set()

    def check_held(self, texts: Iterable[str], requests: int) -> None:
        """Raise BudgetExceededError where `requests` with all these texts may not fit."""
        worst = self._worst_of(texts, None)
        self.check(Cost(requests, worst.prompt_tokens, 0, worst.cost))

    def check_room(self) -> None:
        """Raise BudgetExceededError where what is spent and under way is too much already."""
        if reason := self._reason_against(self.spent + self._reserved):
            raise BudgetExceededError(reason, is_final=self._is_spent())

    def cost(self, prompt_tokens: int, completion_tokens: int) -> Cost:
        """Of one call."""
        tokens = (prompt_tokens, completion_tokens)
        return Cost(1, *tokens, price(self._settings, *tokens))

    def cost_of(self, completion: Completion) -> Cost:
        """What a finished call took."""
        return self.cost(completion.prompt_tokens, completion.completion_tokens)

    def _worst_of(self, texts: Iterable[str], chat: Chat | None) -> Cost:
        prompt = list(texts)
        if chat is not None and chat.response_format is not None:
            # Hosted servers count the schema as part of the prompt.
            prompt.append(json.dumps(chat.response_format, ensure_ascii=False))
        sizes = [len(text.encode("utf-8", "replace")) for text in prompt]
        tokens = sum(-(-size // _BYTES_PER_TOKEN) for size in sizes)
        tokens = _TOKENS_PER_MESSAGE * len(prompt) + math.ceil(tokens * self._surplus)
        return self.cost(tokens, 0 if chat is None else chat.max_output_tokens)

    def _learn(self, reserved: int, taken: int) -> None:
        if taken > reserved > 0:
            self._surplus = min(self._surplus * taken / reserved, float(_BYTES_PER_TOKEN))

    def _is_spent(self) -> bool:
        """Whether not even a question without words would fit."""
        least = self.cost(0, self._settings.max_output_tokens)
        return self._reason_against(self.spent + least) is not None

    def _reason_against(self, total: Cost) -> str | None:
        bounds = self._settings
        if bounds.max_calls is not None and total.calls > bounds.max_calls:
            return f"the budget of {bounds.max_calls} calls is used up"
        tokens = total.prompt_tokens + total.completion_tokens
        if bounds.max_tokens_total is not None and tokens > bounds.max_tokens_total:
            return f"the budget of {bounds.max_tokens_total} tokens does not hold the next call"
        # Sums of floats: a budget that is met exactly is not exceeded.
        if bounds.max_cost is not None and total.cost > bounds.max_cost * (1 + 1e-9):
            return f"the budget of {bounds.max_cost:g} does not hold the next call"
        return None


@dataclass(slots=True)
class Reservation:
    """What a call under way may take; `taken` is set once it is known."""

    budget: Budget
    worst: Cost
    taken: Cost | None = None

    def note_failed_try(self, error: LLMUnavailableError) -> Cost:
        """Count a try without an answer, and say what it is booked at.

        At the worst where the server may have done the work: what it charges is not known.
        """
        cost = self.worst if error.is_charged else self.budget.cost(0, 0)
        self.budget.spent += cost
        return cost
