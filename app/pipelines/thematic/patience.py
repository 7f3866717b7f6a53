"""Tells a batch that takes a model too long from a model that is gone.

A slow model answers one question in time and twenty not. So where a batch gets no answer, one item
is asked about alone, of another batch where there is one: what keeps the model from answering may
be a single item of this one. Has it an answer, the batch was too large and its halves may have one;
has it none, the model is lost.
"""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from itertools import chain
from typing import Generic, TypeVar

from app.pipelines.llm import AnswerRejectedError, BudgetExceededError, LLMUnavailableError

Item = TypeVar("Item", bound=Hashable)
Verdict = TypeVar("Verdict")


class TooManyError(AnswerRejectedError):
    """No answer on so many items in one call, where one alone gets an answer."""


class Patience(Generic[Item, Verdict]):
    """Asks about batches.

    Args:
        ask: gives one verdict per item of a batch, in their order.
    """

    def __init__(self, ask: Callable[[Sequence[Item]], Awaitable[list[Verdict]]]) -> None:
        self._ask = ask
        self._alone: set[Item] = set()
        self._others: Sequence[Item] = ()

    def lend(self, others: Sequence[Item]) -> None:
        """Further items that may be asked about alone; they are going to be asked about anyway."""
        self._others = others

    async def ask(self, part: Sequence[Item]) -> list[Verdict]:
        """The verdicts on a batch.

        Raises:
            TooManyError: it counts as a question without a usable answer.
            LLMError: as `ask` of the model raises it, for a batch because of the one item.
        """
        if len(part) == 1:
            self._alone.update(part)
        try:
            return await self._ask(part)
        except (LLMUnavailableError, BudgetExceededError) as error:
            if error.is_final or len(part) == 1:
                raise
            # One that was asked alone before would be answered out of the cache.
            others = (item for item in self._others if item not in part)
            fresh = (item for item in chain(others, part) if item not in self._alone)
            await self.ask([next(fresh, part[0])])
            raise TooManyError([str(error)]) from error

    async def ask_by_halves(self, part: Sequence[Item]) -> list[Verdict]:
        """The verdicts on a batch, which is asked about in halves where it is too large."""
        try:
            return await self.ask(part)
        except TooManyError:
            middle = len(part) // 2
            first = await self.ask_by_halves(part[:middle])
            return first + await self.ask_by_halves(part[middle:])
