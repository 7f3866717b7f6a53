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
from app.pipelines.llm.interface import EmbeddingsSettings, LLMError, OnFailedTry
from app.pipelines.llm.retrying import Retrying
from app.pipelines.llm.transport import Key, Poster, Server

__all__ = ["Embeddings", "EmbeddingsClient", "EmbeddingsError", "EmbeddingsSettings", "cut"]

_PATH: Final = "/embeddings"
# Servers bound a request by texts (OpenAI: 2,048) and by tokens (llama.cpp: its batch).
MAX_TEXTS: Final = 64
MAX_CHARACTERS: Final = 50_000


class EmbeddingsError(LLMError):
    """The server's vectors are of no use."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """What one request gave.

    Attributes:
        vectors: (texts, dimensions), rows of unit length in the order of the texts.
        prompt_tokens: of the texts, estimated where the server does not count.
    """

    vectors: NDArray[np.float32]
    prompt_tokens: int


class EmbeddingsClient:
    """Embeds texts by a model behind an OpenAI-compatible server, several requests at once."""

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
        self._retrying = retrying or Retrying(
            settings.max_retries, AdaptiveLimit(settings.concurrency), on_wait
        )

    async def embed(
        self, texts: Sequence[str], on_failed_try: OnFailedTry | None = None
    ) -> Embeddings:
        """The vectors of these texts, in one request; `cut` tells how many go into one.

        Args:
            on_failed_try: as in ChatClient.

        Raises:
            EmbeddingsError: vectors are missing, of different lengths, not finite or zero.
            LLMUnavailableError: as in ChatClient.
        """
        body = {"model": self._model, "input": list(texts), "encoding_format": "float"}
        post = partial(self._server.post, _PATH, body)
        answer, _ = await self._retrying.call(post, on_failed_try)
        tokens = _count(answer.get("usage")) or tokens_in(texts)
        return Embeddings(_vectors(answer.get("data"), len(texts)), tokens)

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()


def cut(texts: Sequence[str], most_texts: int) -> Iterator[list[str]]:
    """The texts in batches of one request each."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        if batch and (len(batch) == most_texts or characters + len(text) > MAX_CHARACTERS):
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
