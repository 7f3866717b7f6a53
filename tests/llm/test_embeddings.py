"""Vectors from a server: in the order of the texts, of unit length, or an error that says why."""

import asyncio
import math
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
import pytest
from llm.doubles import MODEL, Pauses, retrying
from support.fake_llm import FakeLLM, Held, Raw, Status

from app.pipelines.llm import LLMUnavailableError, embeddings
from app.pipelines.llm.embeddings import EmbeddingsClient, EmbeddingsError, EmbeddingsSettings, cut

TEXTS = ["No parking", "Kind staff", "Long wait"]


@pytest.fixture
async def client(fake: FakeLLM) -> AsyncGenerator[EmbeddingsClient, None]:
    settings = EmbeddingsSettings(fake.url, MODEL)
    made = EmbeddingsClient(settings, retrying=retrying(Pauses()))
    yield made
    await made.close()


def _data(*vectors: Any) -> Raw:
    entries = [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    return Raw({"data": entries})


async def test_vectors_have_unit_length_and_the_order_of_the_texts(
    fake: FakeLLM, client: EmbeddingsClient
) -> None:
    straight = (await client.embed(TEXTS)).vectors
    turned = (await client.embed(TEXTS[::-1])).vectors
    assert straight.dtype == np.float32
    assert np.allclose(np.linalg.norm(straight, axis=1), 1)
    assert (straight == turned[::-1]).all()
    assert fake.calls[0].request == {"model": MODEL, "input": TEXTS, "encoding_format": "float"}


async def test_vectors_are_ordered_by_their_index(fake: FakeLLM, client: EmbeddingsClient) -> None:
    fake.script(
        Raw(
            {
                "data": [
                    {"index": 1, "embedding": [0, 2]},
                    {"index": 2, "embedding": [-3, 0]},
                    {"index": 0, "embedding": [1, 0]},
                ]
            }
        )
    )
    assert (await client.embed(TEXTS)).vectors.tolist() == [[1, 0], [0, 1], [-1, 0]]


def test_many_texts_go_in_batches_by_number_and_by_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embeddings, "MAX_CHARACTERS", 100)
    texts = [f"text {number}" for number in range(10)] + ["x" * 99, "y" * 150]
    batches = list(cut(texts, 4))
    assert [len(batch) for batch in batches] == [4, 4, 2, 1, 1]
    assert [text for batch in batches for text in batch] == texts
    assert list(cut([], 4)) == []


async def test_requests_are_made_a_few_at_once(fake: FakeLLM) -> None:
    client = EmbeddingsClient(EmbeddingsSettings(fake.url, MODEL, concurrency=3))
    fake.script(*[Held()] * 3)
    asking = [asyncio.ensure_future(client.embed([f"text {n}"])) for n in range(5)]
    await fake.until(lambda: fake.under_way == 3)
    fake.release()
    await asyncio.gather(*asking)
    await client.close()
    assert fake.most_under_way == 3


@pytest.mark.parametrize(
    "answer",
    [
        _data([1, 0], [0, 1]),
        _data([1, 0], [0, 1], [1, 1], [1, 2]),
        Raw({"data": [{"index": 0, "embedding": [1, 0]}] * 3}),
        Raw({"data": [{"index": [0], "embedding": [1, 0]}] * 3}),
        Raw({"data": "none"}),
        Raw({}),
        _data([1, 0], [0, 1], [1, 1, 1]),
        _data([], [], []),
        _data(1, 2, 3),
        _data([1, 0], [0, 1], None),
        _data([1, 0], [0, 1], ["a", "b"]),
        _data([1, 0], [0, 1], [0, 0]),
        _data([1, 0], [0, 1], [math.nan, 1]),
        _data([1, 0], [0, 1], [math.inf, 1]),
        _data([1, 0], [0, 1], [10**400, 1]),
    ],
    ids=str,
)
async def test_useless_vectors_are_refused(
    fake: FakeLLM, client: EmbeddingsClient, answer: Raw
) -> None:
    fake.script(answer)
    with pytest.raises(EmbeddingsError, match="vectors"):
        await client.embed(TEXTS)


async def test_a_passing_failure_is_tried_again(fake: FakeLLM, client: EmbeddingsClient) -> None:
    fake.script(Status(429, {"retry-after": "1"}), Status(503))
    assert len((await client.embed(TEXTS)).vectors) == 3
    assert len(fake.calls) == 3


async def test_a_model_that_is_not_there_fails_at_once(
    fake: FakeLLM, client: EmbeddingsClient
) -> None:
    fake.script(Status(404))
    with pytest.raises(LLMUnavailableError):
        await client.embed(TEXTS)
    assert len(fake.calls) == 1
