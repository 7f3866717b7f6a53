"""One job's language model: each question asked once, within the budget, until its answer holds.

    ask --> kept already? --> budget --> client --> keep --> JSON --> pydantic --> check
                                           ^                                         |
                                           '-------- one repair call <-- problems ---'

What is kept is the call as it came back, repair calls too: a job that is killed and started again
walks the same way through the kept calls and repeats none that was finished.
"""

import asyncio
import hashlib
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Final, Literal, Protocol, TypeVar
from uuid import uuid4

from pydantic import BaseModel, Field

from app.domain.errors import TooLargeError
from app.domain.sharing import CallUsage
from app.pipelines.llm import structured
from app.pipelines.llm.budget import Budget, Cost
from app.pipelines.llm.flights import Flights, in_any_case
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

PROBE_STAGE: Final = "probe"
# The server understood the request and refuses what is in it: another form, or less of it, may do.
_REFUSED_AS_IT_IS: Final = frozenset({400, 413, 415, 422, 501})
# Calls in a row that failed with all their retries: the rest would only wait likewise.
_PATIENCE: Final = 2
# Questions in a row that were refused in every form. One item that a server does not like brings a
# batch of 20 refused as a whole and four times as a half of it, before anything else is asked.
_MOST_REFUSALS: Final = 8

_logger: Final = logging.getLogger("haulage.llm")
T = TypeVar("T", bound=BaseModel)


class CallStore(Protocol):
    """What LLM needs of a job's context; see PipelineContext."""

    @property
    def job_id(self) -> str: ...  # noqa: D102

    async def load_call(self, key: str) -> Any: ...  # noqa: D102

    async def save_call(  # noqa: D102
        self,
        key: str,
        answer: Any,
        *,
        stage: str,
        model: str,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cost: float = 0.0,
    ) -> None: ...

    async def count_cached_calls(self, stage: str, model: str, calls: int) -> None: ...  # noqa: D102

    async def load_usage(self) -> Sequence[CallUsage]: ...  # noqa: D102


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
        self.budget = Budget(settings)
        self._client = client
        self._store = context
        self._apart = (apart,) if apart else ()
        self._usage: defaultdict[str, StageUsage] = defaultdict(StageUsage)
        self._asked = Counter[str]()
        self._uncounted = Counter[str]()
        self._flights = Flights()
        self._rung: str | None = None
        self._probing = asyncio.Lock()
        self._failures = self._refusals = 0
        self._loss: LLMUnavailableError | None = None

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
        self._add(stage, rejected=1)
        if completion.finish_reason in _INCOMPLETE or completion.refusal is not None:
            raise AnswerRejectedError(problems)
        try:
            repaired = await self._call(stage, structured.repair_of(chat, completion, problems))
        except LLMUnavailableError as error:
            if error.status in _REFUSED_AS_IT_IS:
                raise AnswerRejectedError(problems) from error
            raise
        value, problems = _judged(repaired, answer, check)
        if value is None:
            raise AnswerRejectedError(problems)
        return value

    def usage(self, stage: str) -> StageUsage:
        """What `stage` cost in this attempt."""
        return self._usage[stage]

    def first_right(self, stage: str) -> float | None:
        """The share of the stage's answers that held without repair, None before the first."""
        asked = self._asked[stage]
        return 1 - self._usage[stage].rejected / asked if asked else None

    async def flush_usage(self, stage: str) -> None:
        """Let the job know how many answers of `stage` were found kept since the last time."""
        if calls := self._uncounted.pop(stage, 0):
            await self._store.count_cached_calls(stage, self.settings.model, calls)

    async def close(self) -> None:
        """End the calls under way, give up the connections and flush what was not counted yet."""
        await self._flights.close()
        await self._client.close()
        for stage in list(self._uncounted):
            await self.flush_usage(stage)

    # -- the ladder ---------------------------------------------------------------------------

    async def _obeyed_rung(self) -> str:
        if self._rung is None:
            async with self._probing:
                if self._rung is None:
                    # A budget is a job's, not an attempt's.
                    for spent in await self._store.load_usage():
                        self.budget.note_spent(spent)
                    self._rung = await self._probed_rung()
        return self._rung

    async def _probed_rung(self) -> str:
        rungs: tuple[str, ...] = structured.RUNGS
        if self.settings.structured != "auto":
            rungs = (self.settings.structured,)
        for rung in rungs:
            form = _BoundedProbeAnswer if rung == "bounded_schema" else _ProbeAnswer
            chat = structured.chat_for(rung, _PROBE, form, _PROBE_TOKENS)
            try:
                # Of this job alone: what another job found out may not be so any more.
                completion = await self._call(
                    PROBE_STAGE, chat, self.settings.base_url, self._store.job_id
                )
            except LLMUnavailableError as error:
                if error.status in _REFUSED_AS_IT_IS and rung != rungs[-1]:
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
                return chat, await self._call(stage, chat)
            except LLMUnavailableError as error:
                if error.status not in _REFUSED_AS_IT_IS:
                    raise
                refusal = error
        self._refusals += 1
        if self._refusals >= _MOST_REFUSALS:
            raise self._given_up(
                f"{self._refusals} questions in a row were refused, at last: {refusal}"
            ) from refusal
        raise AnswerRejectedError([f"the server refuses the question: {refusal}"]) from refusal

    # -- one call -----------------------------------------------------------------------------

    async def _call(self, stage: str, chat: Chat, *salt: str) -> Completion:
        """`chat`'s completion: kept, or under way already, or asked for now."""
        key = self._key(chat, salt)
        return await self._flights.join(key, lambda: self._fly(stage, chat, salt))

    async def _fly(self, stage: str, chat: Chat, salt: Sequence[str]) -> Completion:
        for key in (self._key(chat, salt), self._own_key(chat, salt)):
            kept = _completion_of(await self._store.load_call(key))
            if kept is not None:
                self._add(stage, cached_calls=1)
                self._uncounted[stage] += 1
                return kept
        if self._loss is not None:
            raise LLMUnavailableError(str(self._loss), self._loss.status, is_final=True)
        async with self.budget.reserved(chat) as reservation:
            try:
                completion = await self._client.complete(chat, reservation.note_failed_try)
            except LLMUnavailableError as error:
                reservation.taken = reservation.cost_of_failure(error)
                raise self._heeded(error) from error
            self._failures = self._refusals = 0
            completion = replace(completion, text=structured.cleaned(completion.text))
            cost = reservation.taken = self.budget.cost_of(completion)
            self._add(
                stage,
                calls=1,
                prompt_tokens=cost.prompt_tokens,
                completion_tokens=cost.completion_tokens,
                retries=completion.retries,
                cost=cost.cost,
            )
            try:
                await in_any_case(self._keep(stage, chat, salt, completion, cost))
            except TooLargeError:
                # Its cost is kept, and that it was of no use: nobody is to pay for it again.
                completion = replace(completion, text="", finish_reason="oversized", refusal=None)
                await in_any_case(self._keep(stage, chat, salt, completion, cost))
        return completion

    async def _keep(
        self, stage: str, chat: Chat, salt: Sequence[str], completion: Completion, cost: Cost
    ) -> None:
        """Keep it for all jobs; what may pass for this job alone, and no answer for nobody."""
        key = self._key(chat, salt)
        if completion.refusal is not None or completion.finish_reason == "content_filter":
            key = self._own_key(chat, salt)
        if completion.finish_reason == "empty":
            # Its cost is counted all the same.
            key = self._own_key(chat, (*salt, uuid4().hex))
        await self._store.save_call(
            key,
            asdict(completion),
            stage=stage,
            model=self.settings.model,
            prompt_tokens=cost.prompt_tokens,
            completion_tokens=cost.completion_tokens,
            cost=cost.cost,
        )

    def _heeded(self, error: LLMUnavailableError) -> LLMUnavailableError:
        """The error to raise: a final one at once where the server refuses everything.

        After a few failures in a row too. A refusal concerns the question, and ends it alone.
        """
        if error.status in _REFUSED_AS_IT_IS:
            return error
        self._failures += 1
        if error.is_final or self._failures >= _PATIENCE:
            return self._given_up(str(error), error.status)
        return error

    def _given_up(self, reason: str, status: int | None = None) -> LLMUnavailableError:
        self._loss = LLMUnavailableError(reason, status, is_final=True)
        return self._loss

    def _key(self, chat: Chat, salt: Sequence[str]) -> str:
        """Of everything that the answer depends on; the same model elsewhere answers the same.

        But for a server that is set apart.
        """
        asked = [
            self.settings.model,
            [[message.role, message.content] for message in chat.messages],
            chat.response_format,
            self.settings.temperature,
            self.settings.seed,
            chat.max_output_tokens,
            *self._apart,
            *salt,
        ]
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()

    def _own_key(self, chat: Chat, salt: Sequence[str]) -> str:
        """Under which no other job looks."""
        return self._key(chat, (*salt, "of", self._store.job_id))

    def _add(self, stage: str, **amounts: float) -> None:
        usage = self._usage[stage]
        added = {name: getattr(usage, name) + amount for name, amount in amounts.items()}
        self._usage[stage] = replace(usage, **added)


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


def _completion_of(kept: Any) -> Completion | None:
    """What was kept, None where it is nothing or of another version."""
    try:
        return Completion(**kept)
    except TypeError:
        return None
