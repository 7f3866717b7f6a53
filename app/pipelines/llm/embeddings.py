"""Vectors from a server's /embeddings, with the retries of chats and nothing taken on trust."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.domain.sharing import MAX_CALL_TOKENS
from app.pipelines.llm.budget import tokens_in
from app.pipelines.llm.concurrency import AdaptiveLimit
from app.pipelines.llm.interface import LLMError
from app.pipelines.llm.retrying import Retrying
from app.pipelines.llm.transport import Key, Poster, Server

_PATH: Final = "/embeddings"
# Servers bound a request by texts (OpenAI: 2,048) and by tokens (llama.cpp: its batch).
MAX_TEXTS: Final = 64
MAX_CHARACTERS: Final = 50_000


class EmbeddingsError(LLMError):
    """The server's vectors are of no use."""


@dataclass(frozen=True, slots=True)
class EmbeddingsSettings:
    """How to reach an embedding model; see LLMSettings."""

    base_url: str
    model: str
    api_key_env: str | None = None
    timeout_seconds: float = 120.0
    max_retries: int = 5


class EmbeddingsClient:
    """Embeds texts by a model behind an OpenAI-compatible server.

    Attributes:
        prompt_tokens: of all texts so far, estimated where the server does not count.
    """

    def __init__(
        self,
        settings: EmbeddingsSettings,
        *,
        on_wait: Callable[[str], Awaitable[None]] | None = None,
        retrying: Retrying | None = None,
    ) -> None:
        self._model = settings.model
        self._server: Poster = Server(
            settings.base_url, Key(settings.api_key_env), settings.timeout_seconds
        )
        self._retrying = retrying or Retrying(settings.max_retries, AdaptiveLimit(1), on_wait)
        self.prompt_tokens = 0

    async def embed(
        self,
        texts: Sequence[str],
        on_batch: Callable[[int], Awaitable[None]] | None = None,
    ) -> NDArray[np.float32]:
        """One vector of unit length per text, in their order.

        Args:
            on_batch: told after each batch how many texts are done.

        Raises:
            EmbeddingsError: vectors are missing, of different lengths, not finite or zero.
            LLMUnavailableError: as in ChatClient.
        """
        batches = []
        done = 0
        for batch in _batches(texts):
            body = {"model": self._model, "input": batch, "encoding_format": "float"}
            answer, _ = await self._retrying.call(partial(self._server.post, _PATH, body))
            self.prompt_tokens += _count(answer.get("usage")) or tokens_in(batch)
            batches.append(_vectors(answer.get("data"), len(batch)))
            if batches[-1].shape[1] != batches[0].shape[1]:
                raise EmbeddingsError(
                    f"vectors of {batches[0].shape[1]} and of {batches[-1].shape[1]} numbers"
                )
            done += len(batch)
            if on_batch is not None:
                await on_batch(done)
        if not batches:
            return np.zeros((0, 0), np.float32)
        return np.concatenate(batches)

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for text in texts:
        if batch and (len(batch) == MAX_TEXTS or characters + len(text) > MAX_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(text)
        characters += len(text)
    if batch:
        yield batch


def _count(usage: Any) -> int:
    value = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return min(value, MAX_CALL_TOKENS) if isinstance(value, int) and value > 0 else 0


def _vectors(data: Any, expected: int) -> NDArray[np.float32]:
    """The vectors of one batch by their `index`: servers may send them in any order."""
    entries = data if isinstance(data, list) else []
    by_index: dict[int, Any] = {}
    for place, entry in enumerate(entries):
        index = entry.get("index", place) if isinstance(entry, dict) else None
        if isinstance(index, int):
            by_index[index] = entry.get("embedding")
    if len(entries) != expected or by_index.keys() != set(range(expected)):
        raise EmbeddingsError(f"{len(by_index)} usable vectors for {expected} texts")
    try:
        vectors = np.array([by_index[place] for place in range(expected)], np.float64)
    except (TypeError, ValueError, OverflowError):
        raise EmbeddingsError("vectors of different lengths, or not of numbers") from None
    if vectors.ndim != 2 or not vectors.shape[1]:  # noqa: PLR2004  texts by numbers
        raise EmbeddingsError("vectors of different lengths, or not of numbers")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(lengths).all() or not lengths.all():
        raise EmbeddingsError("vectors with numbers that are not finite, or without length")
    unit: NDArray[np.float32] = (vectors / lengths).astype(np.float32)
    return unit
