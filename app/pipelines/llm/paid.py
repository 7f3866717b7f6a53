"""Calls that cost something: each made once, within the budget, and counted whatever it gives.

    call --> kept already? --> under way already? --> budget --> client --> counted and kept
                                                                   '--> no answer: counted

What is kept is the call as it came back. A job that is killed and started again walks the same way
through the kept calls and repeats none that was finished.
"""

import asyncio
import contextlib
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, replace
from typing import Any, Final, Protocol
from uuid import uuid4

from app.domain.errors import TooLargeError
from app.domain.sharing import CallUsage
from app.pipelines.llm import structured
from app.pipelines.llm.budget import Budget, Cost, Reservation
from app.pipelines.llm.flights import SAVING_SECONDS, Flights, in_any_case
from app.pipelines.llm.interface import (
    EMBED_STAGE,
    Chat,
    ChatClient,
    Completion,
    LLMSettings,
    LLMUnavailableError,
    StageUsage,
)
from app.pipelines.llm.retrying import BrokenOffError, OversizedAnswerError

# The server understood the request and refuses what is in it: another form, or less of it, may do.
REFUSED_AS_IT_IS: Final = frozenset({400, 413, 415, 422, 501})
# Calls in a row that failed with all their retries: the rest would only wait likewise.
_PATIENCE: Final = 2
# A server that is being restarted answers again soon after.
_LATER_SECONDS: Final = 60.0
_MOST_LATER_SECONDS: Final = 3_600.0
# What may not come again when it is asked for again; whoever asks next has another chance.
_OF_THIS_JOB: Final = frozenset({"content_filter", "oversized"})


class CountsFailed(Protocol):
    """Where requests without an answer are counted."""

    def count_failed_calls(  # noqa: D102
        self,
        stage: str,
        model: str,
        calls: int,
        *,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cost: float = 0.0,
    ) -> Coroutine[Any, Any, None]: ...


class CallStore(CountsFailed, Protocol):
    """What a language model needs of a job's context; see PipelineContext."""

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


class PaidCalls:
    """One job's calls of one model.

    Args:
        apart: see LLM.
    """

    def __init__(
        self, settings: LLMSettings, client: ChatClient, store: CallStore, apart: str = ""
    ) -> None:
        self.budget = Budget(settings)
        self._settings = settings
        self._client = client
        self._store = store
        self._apart = (apart,) if apart else ()
        self._usage: defaultdict[str, StageUsage] = defaultdict(StageUsage)
        self._uncounted = Counter[str]()
        self._flights = Flights()
        self._gate = asyncio.Semaphore(settings.concurrency)
        self._failures = 0
        self._loss: LLMUnavailableError | None = None
        self._knows_spent = False
        self.refusals = 0

    async def call(
        self,
        stage: str,
        chat: Chat,
        *salt: str,
        is_sound: Callable[[Completion], bool] = lambda _: True,
    ) -> Completion:
        """`chat`'s completion: kept, or under way already, or asked for now.

        Args:
            salt: what its key hangs on beside the question.
            is_sound: whether it may serve other jobs; else it is kept for this one alone.

        Raises:
            LLMUnavailableError: no answer, or the server was given up before.
            BudgetExceededError: the call does not fit.
        """
        key = self._key(chat, salt)
        return await self._flights.join(key, lambda: self._fly(stage, chat, salt, is_sound))

    async def kept(self, chat: Chat, *salt: str) -> Completion | None:
        """What is kept of this call, for all jobs or for this one; nothing is asked."""
        for key in (self._key(chat, salt), self._own_key(chat, salt)):
            kept = _completion_of(await self._store.load_call(key))
            if kept is not None:
                return kept
        return None

    async def count_spent(self) -> None:
        """Take what earlier attempts have spent off the budget, once: it is the job's."""
        if self._knows_spent:
            return
        for spent in await self._store.load_usage():
            if spent.stage != EMBED_STAGE:
                self.budget.note_spent(spent)
        self._knows_spent = True

    def give_up(
        self, reason: str, status: int | None = None, later_seconds: float | None = None
    ) -> LLMUnavailableError:
        """Ask nothing more in this attempt; the error to raise."""
        self._loss = LLMUnavailableError(reason, status, is_final=True, later_seconds=later_seconds)
        return self._loss

    def usage(self, stage: str) -> StageUsage:
        """What `stage` cost in this attempt."""
        return self._usage[stage]

    def note_rejected(self, stage: str) -> None:
        """An answer of `stage` failed its checks."""
        self._add(stage, rejected=1)

    async def flush_usage(self, stage: str) -> None:
        """Let the job know how many answers of `stage` were found kept since the last time."""
        if calls := self._uncounted.pop(stage, 0):
            await self._store.count_cached_calls(stage, self._settings.model, calls)

    async def close(self) -> None:
        """End the calls under way, give up the connections and flush what was not counted yet."""
        await self._flights.close()
        await self._client.close()
        for stage in list(self._uncounted):
            await self.flush_usage(stage)

    # -- one call -----------------------------------------------------------------------------

    async def _fly(
        self, stage: str, chat: Chat, salt: Sequence[str], is_sound: Callable[[Completion], bool]
    ) -> Completion:
        kept = await self.kept(chat, *salt)
        if kept is not None:
            self._add(stage, cached_calls=1)
            self._uncounted[stage] += 1
            return kept
        # A call that waits holds no budget, and is not made where the server is lost meanwhile.
        async with self._gate:
            if self._loss is not None:
                raise self.give_up(str(self._loss), self._loss.status, self._loss.later_seconds)
            return await self._made(stage, chat, salt, is_sound)

    async def _made(
        self, stage: str, chat: Chat, salt: Sequence[str], is_sound: Callable[[Completion], bool]
    ) -> Completion:
        async with self.budget.reserved(chat) as reservation:
            completion = await self._completed(stage, chat, reservation)
            self._failures = self.refusals = 0
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
            is_shared = is_sound(completion)
            try:
                await in_any_case(self._keep(stage, chat, salt, completion, cost, is_shared))
            except TooLargeError:
                # Its cost is kept, and that it was of no use: nobody is to pay for it again.
                completion = replace(completion, text="", finish_reason="oversized", refusal=None)
                await in_any_case(self._keep(stage, chat, salt, completion, cost, False))
        return completion

    async def _completed(self, stage: str, chat: Chat, reservation: Reservation) -> Completion:
        """What the client gives; each try without an answer is counted before another is made."""

        async def note_last(error: LLMUnavailableError) -> None:
            cost = reservation.note_failed_try(error)
            await count_failed(self._store, stage, self._settings.model, cost, error)

        async def note(error: LLMUnavailableError) -> None:
            await note_last(error)
            if not error.is_final:
                self.budget.check_room()

        try:
            return await self._client.complete(chat, note)
        except OversizedAnswerError:
            # A fault of this question alone.
            tokens = (reservation.worst.prompt_tokens, chat.max_output_tokens)
            return Completion("", "oversized", None, *tokens)
        except LLMUnavailableError as error:
            await note_last(error)
            raise self._heeded(error) from error

    async def _keep(
        self,
        stage: str,
        chat: Chat,
        salt: Sequence[str],
        completion: Completion,
        cost: Cost,
        is_shared: bool,  # noqa: FBT001  said by whoever judged it, just before
    ) -> None:
        """Keep it for all jobs; what may pass for this job alone, and no answer for nobody."""
        key = self._key(chat, salt)
        is_refused = completion.refusal is not None or completion.finish_reason in _OF_THIS_JOB
        if is_refused or not is_shared:
            key = self._own_key(chat, salt)
        if completion.finish_reason == "empty":
            # Its cost is counted all the same.
            key = self._own_key(chat, (*salt, uuid4().hex))
        await self._store.save_call(
            key,
            asdict(completion),
            stage=stage,
            model=self._settings.model,
            prompt_tokens=cost.prompt_tokens,
            completion_tokens=cost.completion_tokens,
            cost=cost.cost,
        )

    def _heeded(self, error: LLMUnavailableError) -> LLMUnavailableError:
        """The error to raise: a final one at once where the server refuses everything.

        After a few failures in a row too; those may pass, and tell when to come again. A refusal
        concerns the question, and ends it alone.
        """
        if error.status in REFUSED_AS_IT_IS:
            return error
        self._failures += 1
        if error.is_final:
            return self.give_up(str(error), error.status)
        later = max(_LATER_SECONDS, error.later_seconds or 0.0)
        error.later_seconds = min(later, _MOST_LATER_SECONDS)
        if self._failures >= _PATIENCE:
            return self.give_up(str(error), error.status, error.later_seconds)
        return error

    def _key(self, chat: Chat, salt: Sequence[str]) -> str:
        """Of everything that the answer depends on; the same model elsewhere answers the same.

        But for a server that is set apart.
        """
        asked = [
            self._settings.model,
            [[message.role, message.content] for message in chat.messages],
            chat.response_format,
            self._settings.temperature,
            self._settings.seed,
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


async def count_failed(
    store: CountsFailed, stage: str, model: str, cost: Cost, error: LLMUnavailableError
) -> None:
    """Let the job know of a request without an answer, and what it is booked at."""
    counting = store.count_failed_calls(
        stage,
        model,
        cost.calls,
        prompt_tokens=cost.prompt_tokens,
        completion_tokens=cost.completion_tokens,
        cost=cost.cost,
    )
    if not isinstance(error, BrokenOffError):
        await in_any_case(counting)
        return
    # The job is to end, and nothing but this would end the waiting.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SAVING_SECONDS):
            await counting


def _completion_of(kept: Any) -> Completion | None:
    """What was kept, None where it is nothing or of another version."""
    try:
        return Completion(**kept)
    except TypeError:
        return None
