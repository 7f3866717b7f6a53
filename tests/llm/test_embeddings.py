"""Vectors from a server: in the order of the texts, of unit length, or an error that says why."""

import math
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
import pytest
from llm.doubles import MODEL, Pauses, retrying
from support.fake_llm import FakeLLM, Raw, Status

from app.pipelines.llm import LLMUnavailableError, embeddings
from app.pipelines.llm.embeddings import EmbeddingsClient, EmbeddingsError, EmbeddingsSettings

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
    straight = await client.embed(TEXTS)
    turned = await client.embed(TEXTS[::-1])
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
    assert (await client.embed(TEXTS)).tolist() == [[1, 0], [0, 1], [-1, 0]]


async def test_many_texts_go_in_batches(
    fake: FakeLLM, client: EmbeddingsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "MAX_TEXTS", 4)
    monkeypatch.setattr(embeddings, "MAX_CHARACTERS", 100)
    texts = [f"text {number}" for number in range(10)] + ["x" * 99, "y" * 150]
    done = []

    async def note(count: int) -> None:
        done.append(count)

    vectors = await client.embed(texts, note)
    assert len(vectors) == 12
    assert [len(call.request["input"]) for call in fake.calls] == [4, 4, 2, 1, 1]
    assert done == [4, 8, 10, 11, 12]


async def test_no_texts_need_no_call(fake: FakeLLM, client: EmbeddingsClient) -> None:
    assert len(await client.embed([])) == 0
    assert not fake.calls


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


async def test_every_batch_must_have_the_same_dimensions(
    fake: FakeLLM, client: EmbeddingsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "MAX_TEXTS", 1)
    fake.script(_data([1, 0]), _data([1, 0, 0]))
    with pytest.raises(EmbeddingsError, match="of 2 and of 3 numbers"):
        await client.embed(TEXTS)


async def test_a_passing_failure_is_tried_again(fake: FakeLLM, client: EmbeddingsClient) -> None:
    fake.script(Status(429, {"retry-after": "1"}), Status(503))
    assert len(await client.embed(TEXTS)) == 3
    assert len(fake.calls) == 3


async def test_a_model_that_is_not_there_fails_at_once(
    fake: FakeLLM, client: EmbeddingsClient
) -> None:
    fake.script(Status(404))
    with pytest.raises(LLMUnavailableError):
        await client.embed(TEXTS)
    assert len(fake.calls) == 1
