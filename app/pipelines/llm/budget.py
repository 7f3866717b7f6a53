"""What a job's calls may cost, known before each call and not only after it.

A call under way is reserved at its worst: its prompt as estimated and all of the output that it
may have. A call that fits only once others have turned out cheaper waits for them.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.domain.sharing import CallUsage
from app.pipelines.llm.interface import (
    EMBED_STAGE,
    BudgetExceededError,
    Chat,
    Completion,
    LLMSettings,
    LLMUnavailableError,
)

# Of English text; other scripts have more tokens, code too. No tokenizer fits every model, and
# the common one downloads its vocabulary at the first use.
CHARACTERS_PER_TOKEN = 4
_TOKENS_PER_MESSAGE = 4
_PRICED_TOKENS = 1_000_000
_TIMED_OUT = frozenset({408, 504, 524})


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
    return sum(_TOKENS_PER_MESSAGE + -(-len(text) // CHARACTERS_PER_TOKEN) for text in texts)


def price(settings: LLMSettings, prompt_tokens: int, completion_tokens: int) -> float:
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
    """Counts what calls take and lets none begin that could exceed the settings' bounds."""

    def __init__(self, settings: LLMSettings) -> None:
        self._settings = settings
        self.spent = Cost()
        self._reserved = Cost()
        # The call whose turn it is waits for room, the others for their turn: nobody is woken in
        # vain, and they begin in their order.
        self._turn = asyncio.Lock()
        self._settled = asyncio.Event()

    def note_spent(self, usage: CallUsage) -> None:
        """Count what was spent before, by an earlier attempt; embeddings are no calls of this."""
        if usage.stage == EMBED_STAGE:
            return
        self.spent += Cost(usage.calls, usage.prompt_tokens, usage.completion_tokens, usage.cost)

    def check(self, expected: Cost) -> None:
        """Raise BudgetExceededError where `expected`, added to what is spent, is too much."""
        if reason := self._reason_against(self.spent + expected):
            raise BudgetExceededError(reason, is_final=self._is_spent())

    @asynccontextmanager
    async def reserved(self, chat: Chat) -> AsyncIterator["Reservation"]:
        """Hold what `chat` may take at most, until it is known what it took.

        Raises:
            BudgetExceededError: it does not fit, also when nothing else is under way.
        """
        reservation = Reservation(self, self._worst_of(chat))
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
            self._settled.set()

    def note_failed_try(self, cost: Cost) -> None:
        """Count a try that a call under way makes again.

        Raises:
            BudgetExceededError: there is no room for another.
        """
        self.spent += cost
        if reason := self._reason_against(self.spent + self._reserved):
            raise BudgetExceededError(reason, is_final=self._is_spent())

    def cost(self, prompt_tokens: int, completion_tokens: int) -> Cost:
        """Of one call."""
        tokens = (prompt_tokens, completion_tokens)
        return Cost(1, *tokens, price(self._settings, *tokens))

    def cost_of(self, completion: Completion) -> Cost:
        """What a finished call took."""
        return self.cost(completion.prompt_tokens, completion.completion_tokens)

    def _worst_of(self, chat: Chat) -> Cost:
        prompt_tokens = tokens_in(message.content for message in chat.messages)
        return self.cost(prompt_tokens, chat.max_output_tokens)

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

    def note_failed_try(self, error: LLMUnavailableError) -> None:
        """Count a try before it is made again; raises where the budget holds no other."""
        self.budget.note_failed_try(self.cost_of_failure(error))

    def cost_of_failure(self, error: LLMUnavailableError) -> Cost:
        """A request; where no answer came in time the prompt may have been read and charged."""
        is_charged = error.status is None or error.status in _TIMED_OUT
        return self.budget.cost(self.worst.prompt_tokens if is_charged else 0, 0)
