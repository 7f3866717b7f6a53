"""Vectors from the user's own server, each batch paid for once.

A batch that was answered is kept in the job database under its texts and its model, so that a job
that was killed in the middle, and any later one, asks only for the rest. Nothing else takes the
server's place: where it refuses or answers nonsense, the stage fails and says so.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from app.pipelines.llm.embeddings import EmbeddingsClient, EmbeddingsError, EmbeddingsSettings
from app.pipelines.llm.interface import EMBED_STAGE
from app.pipelines.thematic.embed import refuse_too_many
from app.pipelines.thematic.milestones import Report, decode, encode

STAGE: Final = EMBED_STAGE
BATCH: Final = 64


@dataclass(frozen=True, slots=True)
class Batch:
    """What is kept of a call."""

    vectors: NDArray[np.float16]


class KeptCalls(Protocol):
    """Where finished calls are kept; a PipelineContext is one."""

    async def load_call(self, key: str) -> Any:
        """The answer kept under `key`, else None."""

    async def save_call(
        self, key: str, answer: Any, *, stage: str, model: str, prompt_tokens: int
    ) -> None:
        """Keep an answer and what it cost."""

    async def count_cached_calls(self, stage: str, model: str, calls: int) -> None:
        """Add to the calls that found their answers kept."""


class Endpoint:
    """A model behind a server's /embeddings, and the job whose calls are kept."""

    def __init__(self, settings: EmbeddingsSettings, kept: KeptCalls) -> None:
        self._settings = settings
        self._kept = kept

    async def embed(self, texts: Sequence[str], report: Report) -> NDArray[np.float16]:
        """Unit vectors of the texts, in their order.

        Raises:
            EmbeddingsError: vectors are missing, not finite, or of another length than before.
            ParameterError: all vectors would be more than a job can keep; the first batch tells.
            LLMUnavailableError: the server refuses, or does not answer within the retries.
        """
        done = found_kept = 0
        model = self._settings.model

        async def wait(reason: str) -> None:
            await report(done / len(texts), reason)

        await report(0.0, f"asking {model} for vectors")
        client = EmbeddingsClient(self._settings, on_wait=wait)
        batches: list[NDArray[np.float16]] = []
        try:
            for start in range(0, len(texts), BATCH):
                batch = list(texts[start : start + BATCH])
                vectors = await self._kept_vectors(batch)
                if vectors is None:
                    before = client.prompt_tokens
                    vectors = (await client.embed(batch)).astype(np.float16)
                    await self._kept.save_call(
                        self._key(batch),
                        encode(Batch(vectors)),
                        stage=STAGE,
                        model=model,
                        prompt_tokens=client.prompt_tokens - before,
                    )
                else:
                    found_kept += 1
                batches.append(vectors)
                if vectors.shape[1] != batches[0].shape[1]:
                    raise EmbeddingsError(
                        f"{model} gave vectors of {batches[0].shape[1]} numbers and of "
                        f"{vectors.shape[1]}"
                    )
                refuse_too_many(len(texts), vectors.shape[1], "embedding.model", model)
                done += len(batch)
                await report(done / len(texts), f"{done:,} of {len(texts):,} texts")
        finally:
            await client.close()
        if found_kept:
            await self._kept.count_cached_calls(STAGE, model, found_kept)
        return np.concatenate(batches)

    async def _kept_vectors(self, batch: list[str]) -> NDArray[np.float16] | None:
        answer = await self._kept.load_call(self._key(batch))
        return None if answer is None else decode(Batch, answer).vectors

    def _key(self, batch: list[str]) -> str:
        told = json.dumps(["embeddings", self._settings.model, batch], ensure_ascii=True)
        return hashlib.sha256(told.encode()).hexdigest()
