"""One job's language model: each question asked once, within the budget, until its answer holds.

    ask --> ladder of forms --> paid call --> JSON --> pydantic --> check
                                   ^                                  |
                                   '---- one repair call <-- problems '

Repair calls are kept as well: a job that is started again finds them on its way.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeVar

from pydantic import BaseModel, Field

from app.pipelines.llm import structured
from app.pipelines.llm.budget import Budget
from app.pipelines.llm.interface import (
    AnswerRejectedError,
    Chat,
    ChatClient,
    Completion,
    LLMSettings,
    LLMUnavailableError,
    Message,
    StageUsage,
)
from app.pipelines.llm.paid import REFUSED_AS_IT_IS, CallStore, PaidCalls

__all__ = ["LLM", "PROBE_STAGE", "CallStore"]

PROBE_STAGE: Final = "probe"
# Questions in a row that were refused in every form. One item that a server does not like brings a
# batch of 20 refused as a whole and four times as a half of it, before anything else is asked.
_MOST_REFUSALS: Final = 8

_logger: Final = logging.getLogger("haulage.llm")
T = TypeVar("T", bound=BaseModel)


class _ProbeAnswer(BaseModel):
    reply: Literal["ready"]


class _BoundedProbeAnswer(_ProbeAnswer):
    letters: str = Field(max_length=5)
    digit: int = Field(ge=1, le=5)
    words: list[str] = Field(max_length=2)


_PROBE: Final = (Message("user", "Say that you are ready."),)
# A model that thinks before it answers needs room for that.
_PROBE_TOKENS: Final = 1_024
_INCOMPLETE: Final = {
    "length": "the answer was longer than allowed and was cut off",
    "content_filter": "the server's content filter kept the answer back",
    "empty": "the server sent no answer",
    "oversized": "the answer was longer than can be kept",
}


class LLM:
    """One job's model: asks each question once, within the budget, until the answer holds.

    Args:
        context: the job's; answers are kept in it and found there again.
        apart: a name of the server where its answers are not to serve jobs that ask another one;
            "" for a server that is trusted to run the model that it names.
    """

    def __init__(
        self, settings: LLMSettings, client: ChatClient, context: CallStore, apart: str = ""
    ) -> None:
        self.settings = settings
        self._calls = PaidCalls(settings, client, context, apart)
        self._job_id = context.job_id
        self._asked = Counter[str]()
        self._rung: str | None = None
        self._probing = asyncio.Lock()

    @property
    def budget(self) -> Budget:
        """The job's."""
        return self._calls.budget

    async def probe(self) -> None:
        """Find out whether the server answers and which form of answer it obeys; once per job.

        Raises:
            LLMUnavailableError: it does not answer, or with nothing that can be read.
        """
        await self._obeyed_rung()

    async def ask(
        self,
        stage: str,
        messages: Sequence[Message],
        answer: type[T],
        check: Callable[[T], list[str]] = lambda _: [],
        *,
        max_output_tokens: int | None = None,
    ) -> T:
        """The model's answer to `messages`, valid as an `answer` and without objection by `check`.

        An answer that fails is shown to the model once, with its list of problems. One that was
        cut off, refused or empty is not asked for again: the same question would end the same way.

        Args:
            stage: where its usage is counted.
            check: what is wrong with an answer, in words that the model can act on.

        Raises:
            AnswerRejectedError: the answer and its repair failed, or the server refuses the
                question as it is.
            LLMUnavailableError: the server refuses everything, or cannot be reached.
            BudgetExceededError: the call does not fit.
        """
        limit = max_output_tokens or self.settings.max_output_tokens
        chat, completion = await self._answered(stage, messages, answer, limit)
        self._asked[stage] += 1
        value, problems = _judged(completion, answer, check)
        if value is not None:
            return value
        self._calls.note_rejected(stage)
        if completion.finish_reason in _INCOMPLETE or completion.refusal is not None:
            raise AnswerRejectedError(problems)
        try:
            repaired = await self._calls.call(
                stage,
                structured.repair_of(chat, completion, problems),
                # Both failed: another job is to have a chance of its own.
                is_sound=lambda repaired: _judged(repaired, answer, check)[0] is not None,
            )
        except LLMUnavailableError as error:
            if error.status in REFUSED_AS_IT_IS:
                raise AnswerRejectedError(problems) from error
            raise
        value, problems = _judged(repaired, answer, check)
        if value is None:
            raise AnswerRejectedError(problems)
        return value

    def usage(self, stage: str) -> StageUsage:
        """What `stage` cost in this attempt."""
        return self._calls.usage(stage)

    def first_right(self, stage: str) -> float | None:
        """The share of the stage's answers that held without repair, None before the first."""
        asked = self._asked[stage]
        return 1 - self._calls.usage(stage).rejected / asked if asked else None

    async def flush_usage(self, stage: str) -> None:
        """Let the job know how many answers of `stage` were found kept since the last time."""
        await self._calls.flush_usage(stage)

    async def close(self) -> None:
        """End the calls under way, give up the connections and flush what was not counted yet."""
        await self._calls.close()

    # -- the ladder ---------------------------------------------------------------------------

    async def _obeyed_rung(self) -> str:
        if self._rung is None:
            async with self._probing:
                if self._rung is None:
                    await self._calls.count_spent()
                    self._rung = await self._found_rung() or await self._probed_rung()
        return self._rung

    def _probes(self) -> list[tuple[str, Chat, type[_ProbeAnswer]]]:
        """The rungs to try, the strictest first, each with the simplest question there."""
        rungs: tuple[str, ...] = structured.RUNGS
        if self.settings.structured != "auto":
            rungs = (self.settings.structured,)
        tokens = min(_PROBE_TOKENS, self.settings.max_output_tokens)
        probes: list[tuple[str, Chat, type[_ProbeAnswer]]] = []
        for rung in rungs:
            form = _BoundedProbeAnswer if rung == "bounded_schema" else _ProbeAnswer
            probes.append((rung, structured.chat_for(rung, _PROBE, form, tokens), form))
        return probes

    async def _found_rung(self) -> str | None:
        """The one that an earlier attempt went on with.

        A rung that failed by accident then might be obeyed now, and every question that is kept
        would be another one there.
        """
        for rung, chat, form in self._probes():
            kept = await self._calls.kept(chat, *self._probe_salt)
            if kept is not None and structured.read(kept.text, form)[0] is not None:
                await self._calls.call(PROBE_STAGE, chat, *self._probe_salt)  # counts it as found
                return rung
        return None

    async def _probed_rung(self) -> str:
        probes = self._probes()
        for rung, chat, form in probes:
            try:
                completion = await self._calls.call(PROBE_STAGE, chat, *self._probe_salt)
            except LLMUnavailableError as error:
                if error.status in REFUSED_AS_IT_IS and rung != probes[-1][0]:
                    continue
                raise
            value, problems = structured.read(completion.text, form)
            if value is not None:
                return rung
            _logger.info("the LLM does not obey %s: %s", rung, "; ".join(problems))
        raise LLMUnavailableError(
            f"{self.settings.model} does not answer in JSON, not even to the simplest question",
            is_final=True,
        )

    @property
    def _probe_salt(self) -> tuple[str, str]:
        """Of this job alone: what another job found out may not be so any more."""
        return self.settings.base_url, self._job_id

    async def _answered(
        self, stage: str, messages: Sequence[Message], answer: type[BaseModel], limit: int
    ) -> tuple[Chat, Completion]:
        """The first completion; a server that refuses this very schema is asked in words.

        The lower rung is not remembered: which call came first would then decide about the
        others, and a job that is started again would not find the calls that were kept.
        """
        rung = await self._obeyed_rung()
        rungs = structured.RUNGS[structured.RUNGS.index(rung) :]
        if self.settings.structured != "auto":
            rungs = rungs[:1]
        for rung in rungs:
            chat = structured.chat_for(rung, messages, answer, limit)
            try:
                completion = await self._calls.call(
                    stage,
                    chat,
                    # What is no answer at all may be a hiccup; one that is wrong in its meaning
                    # is repaired, and serves as it is.
                    is_sound=lambda given: structured.read(given.text, answer)[0] is not None,
                )
            except LLMUnavailableError as error:
                if error.status not in REFUSED_AS_IT_IS:
                    raise
                refusal = error
            else:
                return chat, completion
        self._calls.refusals += 1
        if self._calls.refusals >= _MOST_REFUSALS:
            raise self._calls.give_up(
                f"{self._calls.refusals} questions in a row were refused, at last: {refusal}"
            ) from refusal
        raise AnswerRejectedError([f"the server refuses the question: {refusal}"]) from refusal


def _judged(
    completion: Completion, answer: type[T], check: Callable[[T], list[str]]
) -> tuple[T | None, list[str]]:
    """The answer, or what is wrong with it."""
    if completion.refusal is not None:
        return None, [f"the model refused: {completion.refusal[:200] or 'without a reason'}"]
    if completion.finish_reason in _INCOMPLETE:
        return None, [_INCOMPLETE[completion.finish_reason]]
    value, problems = structured.read(completion.text, answer)
    if value is not None:
        problems = check(value)[: structured.MAX_PROBLEMS]
    return (None if problems else value), problems
