"""The openai SDK as another way to the same server: same answers, same failures, our retries."""

import asyncio
import gzip
import sys

import pytest
from llm.doubles import CHAT, MODEL, QUESTION, Memory, Name, settings_for
from support.fake_llm import BAD_GATEWAY, EMPTY_CHOICES, Drip, FakeLLM, Held, Reset, Said, Status

from app.pipelines.llm import LLMSettings, LLMUnavailableError, open_llm, transport
from app.pipelines.llm.retrying import OversizedAnswerError
from app.pipelines.llm.sdk_client import SDKClient

KEY = "sk-secret-1234567890"


async def test_a_question_is_answered_through_the_sdk(fake: FakeLLM) -> None:
    llm = open_llm(settings_for(fake, client="openai"), Memory())
    assert (await llm.ask("name", QUESTION, Name)).name
    await llm.close()
    assert fake.calls[-1].request["response_format"]["type"] == "json_schema"
    assert fake.calls[-1].headers["user-agent"].startswith("AsyncOpenAI/")


async def test_passing_failures_are_tried_again_by_us_alone(fake: FakeLLM) -> None:
    at_once = {"retry-after-ms": "1"}
    fake.script(Status(429, at_once), Status(500, at_once), Status(502, at_once, BAD_GATEWAY.body))
    client = SDKClient(settings_for(fake))
    completion = await client.complete(CHAT)
    await client.close()
    assert completion.retries == 3
    assert len(fake.calls) == 4


async def test_refusals_and_empty_answers_are_read_alike(fake: FakeLLM) -> None:
    fake.script(Said(None, refusal="no"), EMPTY_CHOICES)
    client = SDKClient(settings_for(fake))
    assert (await client.complete(CHAT)).refusal == "no"
    assert (await client.complete(CHAT)).finish_reason == "empty"
    await client.close()


async def test_a_redirect_is_not_followed(fake: FakeLLM) -> None:
    with FakeLLM() as thief:
        fake.script(Status(307, {"location": f"{thief.url}/chat/completions"}))
        client = SDKClient(settings_for(fake))
        with pytest.raises(LLMUnavailableError, match="not followed"):
            await client.complete(CHAT)
        await client.close()
        assert not thief.calls


async def test_time_outs_and_broken_connections_are_failures(fake: FakeLLM) -> None:
    fake.script(Drip(pause_seconds=0.05), Reset())
    client = SDKClient(settings_for(fake, timeout_seconds=0.5, max_retries=0))
    with pytest.raises(LLMUnavailableError, match=r"within 0\.5 s"):
        await client.complete(CHAT)
    with pytest.raises(LLMUnavailableError, match="no answer from"):
        await client.complete(CHAT)
    await client.close()


async def test_cancelling_ends_the_request_in_flight(fake: FakeLLM) -> None:
    fake.script(Held())
    client = SDKClient(settings_for(fake))
    call = asyncio.ensure_future(client.complete(CHAT))
    await fake.until(lambda: fake.under_way == 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await fake.until(lambda: fake.under_way == 0)
    await client.close()


async def test_the_key_is_sent_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_KEY", KEY)
    with FakeLLM(key=KEY) as fake:
        client = SDKClient(settings_for(fake, api_key_env="LLM_KEY"))
        assert (await client.complete(CHAT)).text
        fake.script(Status(403, {}, {"error": {"message": f"{KEY} may not"}}))
        with pytest.raises(LLMUnavailableError, match=r"\[key\] may not") as caught:
            await client.complete(CHAT)
        await client.close()
    assert KEY not in str(caught.value) + repr(client)
    assert caught.value.is_final


async def test_an_endless_answer_is_cut(fake: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_RESPONSE_BYTES", 1_000)
    fake.script(Said("x" * 2_000))
    client = SDKClient(settings_for(fake))
    with pytest.raises(OversizedAnswerError, match="more than 1000 bytes"):
        await client.complete(CHAT)
    await client.close()
    assert len(fake.calls) == 1


async def test_a_compressed_answer_is_not_unpacked(fake: FakeLLM) -> None:
    packed = gzip.compress(b'{"choices": [{"message": {"content": "yes"}}]}' + b" " * 1_000_000)
    fake.script(Status(200, {"content-encoding": "gzip"}, packed))
    client = SDKClient(settings_for(fake, max_retries=0))
    with pytest.raises(LLMUnavailableError):
        await client.complete(CHAT)
    await client.close()
    assert fake.calls[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("key", [None, KEY])
async def test_nothing_of_the_environment_is_told_to_a_server(
    monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    for name in ("ORG_ID", "PROJECT_ID", "ADMIN_KEY", "API_KEY", "WEBHOOK_SECRET"):
        monkeypatch.setenv(f"OPENAI_{name}", "of-another-account")
    custom = "X-Custom: of-another-account\nAuthorization: Bearer of-another-account"
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", custom)
    if key is not None:
        monkeypatch.setenv("LLM_KEY", key)
    with FakeLLM(key=key) as fake:
        client = SDKClient(settings_for(fake, api_key_env=key and "LLM_KEY"))
        assert (await client.complete(CHAT)).text
        await client.close()
    assert "of-another-account" not in str(fake.calls[0].headers)
    assert ("authorization" in fake.calls[0].headers) is (key is not None)


def test_without_the_sdk_its_absence_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    settings = LLMSettings("http://127.0.0.1:1/v1", MODEL, client="openai")
    with pytest.raises(LLMUnavailableError, match="pip install 'haulage"):
        open_llm(settings, Memory())
