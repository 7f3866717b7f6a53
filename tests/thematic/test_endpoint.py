"""Vectors from the user's own server: paid for once, and nothing else in their place."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.fake_llm import FakeLLM, Raw, Status
from thematic.coder import good
from thematic.recording import RecordingContext

from app.pipelines.llm import LLMUnavailableError
from app.pipelines.llm.budget import tokens_in
from app.pipelines.llm.embeddings import EmbeddingsError, EmbeddingsSettings
from app.pipelines.thematic import embed, endpoint
from app.pipelines.thematic.checking import ParameterError
from app.pipelines.thematic.endpoint import Endpoint
from app.pipelines.thematic.parameters import parse_request
from app.pipelines.thematic.pipeline import ThematicAnalysis

MODEL = "embedder"
TEXTS = [f"Answer number {number}" for number in range(150)]


async def unheard(done: float, message: str) -> None:
    pass


@pytest.fixture
def server() -> Iterator[FakeLLM]:
    with FakeLLM() as running:
        yield running


def asking(server: FakeLLM, context: RecordingContext) -> Endpoint:
    return Endpoint(EmbeddingsSettings(server.url, MODEL, max_retries=0), context)


async def test_each_text_has_its_vector_in_its_place(server: FakeLLM) -> None:
    there = asking(server, RecordingContext())
    embedded = await embed.embed(TEXTS, "endpoint", unheard, there)
    turned = await embed.embed(TEXTS[::-1], "endpoint", unheard, there)
    assert embedded.backend == "endpoint"
    assert embedded.vectors.dtype == np.float16
    assert embedded.vectors.shape == (150, 8)
    assert np.array_equal(embedded.vectors, turned.vectors[::-1])
    assert np.allclose(np.linalg.norm(embedded.vectors.astype(float), axis=1), 1, atol=1e-3)


async def test_a_batch_that_was_answered_is_never_asked_for_again(server: FakeLLM) -> None:
    calls: dict[str, str] = {}
    first, second, third = (RecordingContext(calls=calls) for _ in range(3))
    server.script(Raw(_data(64)), Status(500))  # broken off in the second batch
    with pytest.raises(LLMUnavailableError):
        await asking(server, first).embed(TEXTS, unheard)
    assert [(call.stage, call.model) for call in first.paid] == [("embed", MODEL)]
    again = await asking(server, second).embed(TEXTS, unheard)
    assert len(second.paid) == 2
    assert second.found == {("embed", MODEL): 1}
    asked = len(server.calls)
    assert np.array_equal(await asking(server, third).embed(TEXTS, unheard), again)
    assert len(server.calls) == asked
    assert third.found == {("embed", MODEL): 3}


async def test_another_model_is_asked_anew(server: FakeLLM) -> None:
    context = RecordingContext()
    await asking(server, context).embed(TEXTS, unheard)
    other = Endpoint(EmbeddingsSettings(server.url, "another"), context)
    await other.embed(TEXTS, unheard)
    assert len(server.calls) == 6


async def test_vectors_of_another_length_than_those_kept_are_refused(server: FakeLLM) -> None:
    context = RecordingContext()
    server.script(Raw(_data(64, size=5)))
    with pytest.raises(EmbeddingsError, match="5 numbers and of 8"):
        await asking(server, context).embed(TEXTS, unheard)


async def test_more_vectors_than_a_job_can_keep_are_refused_when_one_batch_is_paid(
    server: FakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = RecordingContext()
    monkeypatch.setattr(embed, "MOST_NUMBERS", len(TEXTS) * 8 - 1)
    for _ in range(2):  # a second attempt pays nothing
        with pytest.raises(ParameterError, match=r"at most 149 texts .* at most 7 dimensions"):
            await asking(server, context).embed(TEXTS, unheard)
    assert len(server.calls) == len(context.paid) == 1


@pytest.mark.parametrize(
    "answer", [Status(401), Status(404), Raw({"data": []}), Raw({"data": [{"embedding": [1]}]})]
)
async def test_nothing_stands_in_for_a_server_that_was_asked_for(
    server: FakeLLM, answer: Any
) -> None:
    server.script(answer)
    embedding = {"backend": "endpoint", "base_url": server.url, "model": MODEL}
    payload = {"answers": TEXTS, "embedding": embedding}
    context = RecordingContext()
    with pytest.raises((LLMUnavailableError, EmbeddingsError)):
        await ThematicAnalysis(llm_origins=[server.url]).run(payload, context)
    assert "embed" not in context.checkpoints
    assert not context.paid


async def test_a_job_says_whose_vectors_it_used(server: FakeLLM) -> None:
    embedding = {"backend": "endpoint", "base_url": server.url, "model": MODEL}
    payload = {"answers": TEXTS, "embedding": embedding, "mode": "keywords"}
    result = await ThematicAnalysis(llm_origins=[server.url]).run(payload, RecordingContext())
    assert result["embedding"]["backend"] == "endpoint"
    assert result["embedding"]["model"] == MODEL
    assert len(server.calls) == -(-len(TEXTS) // endpoint.BATCH)


async def test_vectors_take_nothing_of_the_models_budget(server: FakeLLM) -> None:
    embedding = {"backend": "endpoint", "base_url": server.url, "model": MODEL}
    payload = {"answers": TEXTS, "embedding": embedding, "mode": "name"}
    context = RecordingContext()
    with FakeLLM(good) as llm:
        own = {"base_url": llm.url, "model": "m", "max_calls": 3}
        pipeline = ThematicAnalysis(defaults={"llm": own}, llm_origins=[server.url])
        result = await pipeline.run(payload, context)
        assert len(llm.calls) == 3
    assert result["usage"]["by_stage"]["embed"]["llm_calls"] == len(server.calls) == 3
    assert result["usage"]["by_stage"]["embed"]["prompt_tokens"] == tokens_in(TEXTS)


async def test_tokens_are_the_servers_where_it_counts(server: FakeLLM) -> None:
    context = RecordingContext()
    server.script(Raw(_data(64) | {"usage": {"prompt_tokens": 1_000, "total_tokens": 1_000}}))
    await asking(server, context).embed(TEXTS, unheard)
    assert context.paid[0].prompt_tokens == 1_000
    assert context.paid[1].prompt_tokens == tokens_in(TEXTS[64:128])


@pytest.mark.parametrize(
    ("base_url", "variable"),
    [("http://own.example/v1", "OPERATORS_KEY"), ("http://other.example/v1", None)],
)
def test_the_key_goes_to_the_operators_own_server_alone(
    base_url: str, variable: str | None
) -> None:
    own = {"base_url": "http://own.example/v1", "model": "m", "api_key_env": "OPERATORS_KEY"}
    embedding = {"backend": "endpoint", "base_url": base_url, "model": MODEL}
    request = parse_request(
        {"answers": TEXTS, "embedding": embedding}, llm=own, llm_origins=["http://other.example"]
    )
    assert request.parameters.embedding_api_key_env == variable
    with pytest.raises(ParameterError, match=r"embedding\.api_key_env"):
        parse_request(
            {"answers": TEXTS, "embedding": {**embedding, "api_key_env": "HOME"}},
            llm=own,
            llm_origins=["http://other.example"],
        )


def _data(texts: int, size: int = 8) -> dict[str, Any]:
    vector = [1.0] * size
    return {"data": [{"index": index, "embedding": vector} for index in range(texts)]}
