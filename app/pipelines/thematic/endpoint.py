"""Vectors from the user's own server, each batch paid for once.

    batches of the texts --> kept already? --> budget of all that are not --> one alone, which tells
                                                the dimensions --> a few at once --> each one kept

A batch that was answered is kept in the job database under its texts, its model and its server, so
that a job that was killed in the middle, and any later one, asks only for the rest. Nothing else
takes the server's place: where it refuses or answers nonsense, the stage fails and says so.
"""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from app.domain.sharing import MAX_CALL_ANSWER_BYTES, CallUsage
from app.pipelines.llm.budget import Budget
from app.pipelines.llm.embeddings import (
    MAX_TEXTS,
    EmbeddingsClient,
    EmbeddingsError,
    EmbeddingsSettings,
    cut,
)
from app.pipelines.llm.interface import EMBED_STAGE, BudgetExceededError, LLMUnavailableError
from app.pipelines.llm.paid import CountsFailed, count_failed
from app.pipelines.thematic.embed import refuse_too_many
from app.pipelines.thematic.milestones import Report, decode, encode
from app.pipelines.thematic.reaching import place

STAGE: Final = EMBED_STAGE
BATCH: Final = MAX_TEXTS
# Two bytes a number, in base64, and some beside.
_MOST_KEPT_NUMBERS: Final = (MAX_CALL_ANSWER_BYTES - 1_024) * 3 // 4 // 2


@dataclass(frozen=True, slots=True)
class Batch:
    """What is kept of a call; no rows where they were too many to keep, but their length."""

    vectors: NDArray[np.float16]


class KeptCalls(CountsFailed, Protocol):
    """Where finished calls are kept; a PipelineContext is one."""

    async def load_call(self, key: str) -> Any:
        """The answer kept under `key`, else None."""

    async def save_call(
        self, key: str, answer: Any, *, stage: str, model: str, prompt_tokens: int, cost: float
    ) -> None:
        """Keep an answer and what it cost."""

    async def count_cached_calls(self, stage: str, model: str, calls: int) -> None:
        """Add to the calls that found their answers kept."""

    async def load_usage(self) -> Sequence[CallUsage]:
        """What the job's calls have cost so far."""


class _TooWideError(Exception):
    """The vectors of so many texts are too many to keep together."""

    def __init__(self, dimensions: int) -> None:
        self.most_texts = max(1, _MOST_KEPT_NUMBERS // dimensions)


class Endpoint:
    """A model behind a server's /embeddings, and the job whose calls are kept."""

    def __init__(self, settings: EmbeddingsSettings, kept: KeptCalls) -> None:
        self._settings = settings
        self._kept = kept
        # Two servers may give different models the same name.
        self._place = str(place(settings.base_url) or settings.base_url)

    async def embed(self, texts: Sequence[str], report: Report) -> NDArray[np.float16]:
        """Unit vectors of the texts, in their order.

        Raises:
            EmbeddingsError: vectors are missing, not finite, or of another length than before.
            ParameterError: all vectors would be more than a job can keep; the first batch tells.
            BudgetExceededError: the operator's bounds do not hold what is to be asked.
            LLMUnavailableError: the server refuses, or does not answer within the retries.
        """
        if not texts:
            return np.zeros((0, 0), np.float16)
        budget = Budget(self._settings)
        for spent in await self._kept.load_usage():
            if spent.stage == STAGE:
                budget.note_spent(spent)
        await report(0.0, f"asking {self._settings.model} for vectors")
        most_texts = MAX_TEXTS
        while True:
            run = _Run(self._settings, self._kept, self._place, budget, report)
            try:
                return await run.vectors(list(cut(texts, most_texts)))
            except _TooWideError as error:
                # Of models of more than 6,000 dimensions, once: the length is kept.
                most_texts = error.most_texts
            finally:
                await run.close()


class _Run:
    """All batches of one size."""

    def __init__(
        self,
        settings: EmbeddingsSettings,
        kept: KeptCalls,
        place: str,
        budget: Budget,
        report: Report,
    ) -> None:
        self._settings = settings
        self._kept = kept
        self._place = place
        self._budget = budget
        self._report = report
        self._client = EmbeddingsClient(settings, on_wait=self._wait)
        self._batches: list[list[str]] = []
        self._vectors: dict[int, NDArray[np.float16]] = {}
        self._errors: list[Exception] = []
        self._texts = self._done = 0

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def vectors(self, batches: list[list[str]]) -> NDArray[np.float16]:
        """See Endpoint.embed."""
        self._batches = batches
        self._texts = sum(map(len, batches))
        for number, batch in enumerate(batches):
            answer = await self._kept.load_call(self._key(batch))
            if answer is not None:
                await self._take(number, decode(Batch, answer).vectors)
        if self._vectors:
            await self._kept.count_cached_calls(STAGE, self._settings.model, len(self._vectors))
        missing = [number for number in range(len(batches)) if number not in self._vectors]
        if missing:
            texts = [text for number in missing for text in batches[number]]
            try:
                self._budget.check_held(texts, len(missing))
            except BudgetExceededError as error:
                # What is asked for and then not finished is paid for in vain.
                reason = f"{len(texts):,} texts for {self._settings.model}: {error}"
                raise BudgetExceededError(reason, is_final=True) from None
        if missing and not self._vectors:
            await self._ask(missing.pop(0))
        await self._ask_all(missing)
        return np.concatenate([self._vectors[number] for number in range(len(batches))])

    async def _ask_all(self, missing: Sequence[int]) -> None:
        """A few at once. After an error nothing is begun, and what is under way is kept."""
        numbers = iter(missing)

        async def go_on() -> None:
            for number in numbers:
                if self._errors:
                    return
                try:
                    await self._ask(number)
                except Exception as error:  # noqa: BLE001  raised when the others have ended
                    self._errors.append(error)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._settings.concurrency, len(missing))):
                group.create_task(go_on())
        if self._errors:
            raise self._errors[0]

    async def _ask(self, number: int) -> None:
        batch, model = self._batches[number], self._settings.model
        async with self._budget.held(batch) as reservation:

            async def note_last(error: LLMUnavailableError) -> None:
                cost = reservation.note_failed_try(error)
                await count_failed(self._kept, STAGE, model, cost, error)

            async def note(error: LLMUnavailableError) -> None:
                await note_last(error)
                if not error.is_final:
                    self._budget.check_room()

            try:
                given = await self._client.embed(batch, note)
            except LLMUnavailableError as error:
                await note_last(error)
                raise
            cost = reservation.taken = self._budget.cost(given.prompt_tokens, 0)
            vectors = given.vectors.astype(np.float16)
            is_kept = vectors.size <= _MOST_KEPT_NUMBERS or len(batch) == 1
            await self._kept.save_call(
                self._key(batch),
                encode(Batch(vectors if is_kept else vectors[:0])),
                stage=STAGE,
                model=model,
                prompt_tokens=cost.prompt_tokens,
                cost=cost.cost,
            )
        await self._take(number, vectors if is_kept else vectors[:0])

    async def _take(self, number: int, vectors: NDArray[np.float16]) -> None:
        size = next((known.shape[1] for known in self._vectors.values()), vectors.shape[1])
        model = self._settings.model
        if vectors.shape[1] != size:
            raise EmbeddingsError(
                f"{model} gave vectors of {size} numbers and of {vectors.shape[1]}"
            )
        refuse_too_many(self._texts, size, "embedding.model", model)
        if not len(vectors):
            raise _TooWideError(size)
        self._vectors[number] = vectors
        self._done += len(vectors)
        await self._report(self._done / self._texts, f"{self._done:,} of {self._texts:,} texts")

    async def _wait(self, reason: str) -> None:
        await self._report(self._done / self._texts, reason)

    def _key(self, batch: list[str]) -> str:
        asked = ["embeddings", self._place, self._settings.model, batch]
        return hashlib.sha256(json.dumps(asked, ensure_ascii=True).encode()).hexdigest()
