"""Vectors from the user's own server: paid for once, and nothing else in their place."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.fake_llm import FakeLLM, Held, Raw, Status
from thematic.coder import good
from thematic.recording import RecordingContext

from app.pipelines.llm import BudgetExceededError, LLMUnavailableError
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
    server.script(Raw(_data(64)))
    server.always = Status(500)  # broken off behind the first batch
    with pytest.raises(LLMUnavailableError):
        await asking(server, first).embed(TEXTS, unheard)
    server.always = None
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


async def test_batches_are_asked_a_few_at_once_and_stay_in_order(server: FakeLLM) -> None:
    context = RecordingContext()
    settings = EmbeddingsSettings(server.url, MODEL, concurrency=3)
    texts = [f"Answer number {number}" for number in range(500)]
    server.script(Raw(_data(64)), *[Held()] * 3)
    embedding = asyncio.ensure_future(Endpoint(settings, context).embed(texts, unheard))
    await server.until(lambda: server.under_way == 3)
    server.release()
    vectors = await embedding
    assert server.most_under_way == 3
    one_by_one = Endpoint(EmbeddingsSettings(server.url, "another", concurrency=1), context)
    assert np.array_equal(vectors[64:], (await one_by_one.embed(texts, unheard))[64:])


async def test_what_is_under_way_at_an_error_is_kept(server: FakeLLM) -> None:
    calls: dict[str, str] = {}
    first, second = RecordingContext(calls=calls), RecordingContext(calls=calls)
    server.script(Raw(_data(64)), Status(400), Held(), Held())
    texts = [f"Answer number {number}" for number in range(64 * 10)]
    embedding = asyncio.ensure_future(asking(server, first).embed(texts, unheard))
    await server.until(lambda: len(server.calls) >= 4 and server.under_way >= 2)
    server.release()
    with pytest.raises(LLMUnavailableError):
        await embedding
    kept = len(first.paid)
    assert kept >= 3
    assert kept < 10  # nothing more was begun
    await asking(server, second).embed(texts, unheard)
    assert len(second.paid) == 10 - kept


async def test_long_texts_are_kept_request_by_request(server: FakeLLM) -> None:
    calls: dict[str, str] = {}
    first, second = RecordingContext(calls=calls), RecordingContext(calls=calls)
    texts = [f"{number} " + "x" * 4_000 for number in range(64)]
    settings = EmbeddingsSettings(server.url, MODEL, max_retries=0, concurrency=1)
    server.script(*[Raw(_data(12))] * 3, Status(500))
    with pytest.raises(LLMUnavailableError):
        await Endpoint(settings, first).embed(texts, unheard)
    assert len(first.paid) == 3
    await Endpoint(settings, second).embed(texts, unheard)
    assert len(second.paid) == 3  # of six requests


async def test_vectors_too_long_to_be_kept_together_are_asked_for_in_smaller_batches(
    server: FakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_MOST_KEPT_NUMBERS", 8 * 50)
    calls: dict[str, str] = {}
    first, second = RecordingContext(calls=calls), RecordingContext(calls=calls)
    vectors = await asking(server, first).embed(TEXTS, unheard)
    assert sorted(len(call.request["input"]) for call in server.calls) == [50, 50, 50, 64]
    asked = len(server.calls)
    assert np.array_equal(await asking(server, second).embed(TEXTS, unheard), vectors)
    assert len(server.calls) == asked
    assert not second.paid


async def test_two_servers_may_give_different_models_the_same_name(server: FakeLLM) -> None:
    context = RecordingContext()
    with FakeLLM() as other:
        await asking(server, context).embed(TEXTS, unheard)
        await asking(other, context).embed(TEXTS, unheard)
        assert len(server.calls) == len(other.calls) == 3
    spelt = server.url.replace("http:", "HTTP:") + "/"
    again = Endpoint(EmbeddingsSettings(spelt, MODEL), context)
    await again.embed(TEXTS, unheard)
    assert len(server.calls) == 3


@pytest.mark.parametrize(
    "bound",
    [{"max_tokens_total": 1_000}, {"max_cost": 0.001, "prompt_price": 1.0}],
    ids=str,
)
async def test_more_than_the_operator_allows_is_not_begun(
    server: FakeLLM, bound: dict[str, Any]
) -> None:
    context = RecordingContext()
    bounded = EmbeddingsSettings(server.url, MODEL, **bound)
    with pytest.raises(BudgetExceededError, match="150 texts for embedder"):
        await Endpoint(bounded, context).embed(TEXTS, unheard)
    assert not server.calls
    await Endpoint(bounded, context).embed(TEXTS[:64], unheard)
    # What is kept costs nothing; what was spent by an earlier attempt counts.
    with pytest.raises(BudgetExceededError, match="86 texts"):
        await Endpoint(bounded, context).embed(TEXTS, unheard)
    assert len(server.calls) == 1


async def test_vectors_have_their_price(server: FakeLLM) -> None:
    context = RecordingContext()
    server.script(Raw(_data(64) | {"usage": {"prompt_tokens": 1_000}}))
    await Endpoint(EmbeddingsSettings(server.url, MODEL, prompt_price=2.0), context).embed(
        TEXTS[:64], unheard
    )
    assert context.paid[0].cost == 0.002


async def test_requests_for_vectors_without_an_answer_are_counted(server: FakeLLM) -> None:
    context = RecordingContext()
    server.script(Status(500), Status(503), Status(429))
    settings = EmbeddingsSettings(server.url, MODEL, max_retries=2)
    with pytest.raises(LLMUnavailableError):
        await Endpoint(settings, context).embed(TEXTS[:64], unheard)
    usage = await context.load_usage()
    assert [(each.stage, each.calls, each.prompt_tokens) for each in usage] == [("embed", 3, 0)]


OWN = {"base_url": "http://own.example/v1", "model": "m", "api_key_env": "OPERATORS_KEY"}


def reached(given: dict[str, Any], **operator: Any) -> EmbeddingsSettings:
    payload = {"answers": TEXTS, "embedding": {"backend": "endpoint", "model": MODEL, **given}}
    allowed = {"llm": OWN, "llm_origins": ["http://other.example"], **operator}
    settings = parse_request(payload, **allowed).parameters.embedding
    assert settings is not None
    return settings


def test_the_operators_key_is_for_the_models_that_the_operator_lists() -> None:
    at = {"base_url": OWN["base_url"]}
    with pytest.raises(ParameterError, match=r"embedding\.model.*no model"):
        reached(at)
    with pytest.raises(ParameterError, match=r"embedding\.model.*small"):
        reached(at, embedding={"models": ["small"]})
    assert reached(at, embedding={"models": ["small", MODEL]}).api_key_env == "OPERATORS_KEY"
    assert reached(at, llm={**OWN, "api_key_env": None}).api_key_env is None


def test_the_operators_bounds_are_those_of_the_job() -> None:
    bounds = {"prompt_price": 0.5, "max_tokens_total": 9, "max_cost": 1.0, "max_retries": 1}
    other = {"base_url": "http://other.example/v1"}
    with pytest.raises(ParameterError, match=r"embedding\.model"):
        reached(other, embedding=bounds)
    given = reached(other, embedding={**bounds, "models": [MODEL]})
    assert {name: getattr(given, name) for name in bounds} == bounds
    assert given.api_key_env is None


def test_effort_at_the_llms_server_is_the_llms() -> None:
    effort = {"concurrency": 2, "timeout_seconds": 7.0, "max_retries": 1}
    operator = {"llm": {**OWN, **effort}, "embedding": {"models": [MODEL], "max_retries": 3}}
    given = reached({"base_url": OWN["base_url"]}, **operator)
    assert (given.concurrency, given.timeout_seconds, given.max_retries) == (2, 7.0, 3)
    elsewhere = reached({"base_url": "http://other.example/v1"}, **operator)
    assert (elsewhere.concurrency, elsewhere.timeout_seconds) == (4, 120.0)


def test_the_operators_embedding_server_has_a_key_of_its_own() -> None:
    embedding = {"base_url": "http://vectors.example/v1", "model": MODEL, "api_key_env": "THEIRS"}
    at = {"base_url": embedding["base_url"]}
    for llm in ({}, OWN):
        assert reached(at, llm=llm, embedding=embedding).api_key_env == "THEIRS"
        repeated = reached({**at, "api_key_env": "THEIRS"}, llm=llm, embedding=embedding)
        assert repeated.api_key_env == "THEIRS"
    with pytest.raises(ParameterError, match=r"embedding\.api_key_env"):
        reached({**at, "api_key_env": "OPERATORS_KEY"}, embedding=embedding)
    other = {"base_url": "http://other.example/v1", "api_key_env": "THEIRS"}
    with pytest.raises(ParameterError, match=r"embedding\.api_key_env"):
        reached(other, embedding=embedding)
    with pytest.raises(ParameterError, match=r"embedding\.api_key_env") as caught:
        reached(at, embedding={**embedding, "api_key_env": "sk-very-secret"})
    assert "very-secret" not in str(caught.value) + repr(caught.value.value)


async def test_jobs_use_the_operators_embedding_server_and_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VECTORS_KEY", "sk-vectors-1234567890")
    with FakeLLM(key="sk-vectors-1234567890") as server:
        embedding = {
            "backend": "endpoint",
            "base_url": server.url,
            "model": MODEL,
            "api_key_env": "VECTORS_KEY",
        }
        pipeline = ThematicAnalysis(defaults={"embedding": embedding})
        result = await pipeline.run({"answers": TEXTS, "mode": "keywords"}, RecordingContext())
        assert result["embedding"]["model"] == MODEL
        assert len(server.calls) == 3
        # Where it is no default, a job may name it.
        del embedding["backend"]
        pipeline = ThematicAnalysis(defaults={"embedding": embedding})
        payload = {"answers": TEXTS, "mode": "keywords", "embedding": {"backend": "lsa"}}
        await pipeline.run({**payload, "embedding": {"backend": "lsa"}}, RecordingContext())
        named = {"backend": "endpoint", "base_url": server.url, "model": MODEL}
        result = await pipeline.run({**payload, "embedding": named}, RecordingContext())
        assert result["embedding"]["backend"] == "endpoint"


@pytest.mark.parametrize(
    ("base_url", "variable"),
    [("http://own.example/v1", "OPERATORS_KEY"), ("http://other.example/v1", None)],
)
def test_the_key_goes_to_the_operators_own_server_alone(
    base_url: str, variable: str | None
) -> None:
    at, operator = {"base_url": base_url}, {"embedding": {"models": [MODEL]}}
    assert reached(at, **operator).api_key_env == variable
    with pytest.raises(ParameterError, match=r"embedding\.api_key_env"):
        reached({**at, "api_key_env": "HOME"}, **operator)


def _data(texts: int, size: int = 8) -> dict[str, Any]:
    vector = [1.0] * size
    return {"data": [{"index": index, "embedding": vector} for index in range(texts)]}
