"""The job's model as its stages see it: opened at the first question, or given up for good.

Whether there is a model is decided once per job. What a stage learnt is part of its outcome, and
a job that goes on after that stage does not ask again.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from pydantic import BaseModel

from app.pipelines.llm import (
    AnswerRejectedError,
    BudgetExceededError,
    LLMError,
    LLMUnavailableError,
    Message,
)
from app.pipelines.llm.asking import LLM
from app.pipelines.thematic.milestones import Cost

Answer = TypeVar("Answer", bound=BaseModel)


class Asks(Protocol):
    """Answers a stage's question; see LLM.ask."""

    async def ask(
        self,
        stage: str,
        messages: Sequence[Message],
        answer: type[Answer],
        check: Callable[[Answer], list[str]] = ...,
    ) -> Answer:
        """The answer that holds; raises what LLM.ask raises."""


class Asker:
    """Asks the job's model while there is one.

    Args:
        opening: makes the model; not called before the first question.
        lost: why there is none, None where there may be one.

    Attributes:
        away: why a question found no answer that may find one later, None where none did.
    """

    def __init__(self, opening: Callable[[], LLM], lost: str | None = None) -> None:
        self._opening = opening
        self._asked: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._llm: LLM | None = None
        self.lost = lost
        self.away: LLMUnavailableError | None = None

    @property
    def is_there(self) -> bool:
        """Whether asking is of any use."""
        return self.lost is None

    def heed(self, lost: str | None) -> None:
        """Give the model up where an earlier stage has."""
        self.lost = self.lost or lost

    async def ask(
        self,
        stage: str,
        messages: Sequence[Message],
        answer: type[Answer],
        check: Callable[[Answer], list[str]] = lambda _: [],
    ) -> Answer:
        """The answer; see LLM.ask. A final error ends the model for all questions, others not."""
        if self.lost is not None:
            raise LLMUnavailableError(self.lost, is_final=True)
        try:
            if self._llm is None:
                self._llm = self._opening()
            answered = await self._llm.ask(stage, messages, answer, check)
        except AnswerRejectedError:
            self._asked[stage] += 1
            self._failed[stage] += 1
            raise
        except (LLMUnavailableError, BudgetExceededError) as error:
            if isinstance(error, LLMUnavailableError) and error.later_seconds is not None:
                self.away = error
            if error.is_final:
                self.heed(reason(error))
            raise
        self._asked[stage] += 1
        return answered

    def cost(self, stage: str) -> Cost:
        """What the model did for the stage in this attempt."""
        if self._llm is None:
            return Cost()
        usage = self._llm.usage(stage)
        return Cost(
            llm_calls=usage.calls,
            cached_calls=usage.cached_calls,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            retries=usage.retries,
            cost=usage.cost,
            asked=self._asked[stage],
            rejected=usage.rejected,
            failed=self._failed[stage],
        )

    async def settle(self, stage: str) -> None:
        """Let the job know which answers of the stage were found kept."""
        if self._llm is not None:
            await self._llm.flush_usage(stage)

    async def close(self) -> None:
        """End what is under way."""
        if self._llm is not None:
            await self._llm.close()


class Sparing:
    """Asks likewise, but a question that fails alone is one without a usable answer.

    For stages that go on with the rest, or with less at a time, where an answer is of no use.
    """

    def __init__(self, asks: Asks) -> None:
        self._asks = asks

    async def ask(
        self,
        stage: str,
        messages: Sequence[Message],
        answer: type[Answer],
        check: Callable[[Answer], list[str]] = lambda _: [],
    ) -> Answer:
        """See Asker.ask; raises the other errors only where they are final."""
        try:
            return await self._asks.ask(stage, messages, answer, check)
        except (LLMUnavailableError, BudgetExceededError) as error:
            if error.is_final:
                raise
            raise AnswerRejectedError([str(error)]) from error


def reason(error: LLMError) -> str:
    """Why the model is given up, in words for the result."""
    kind = "the budget is spent" if isinstance(error, BudgetExceededError) else "the LLM failed"
    return f"{kind}: {error}"
