"""What is sent, how odd answers are read, and what may not get out or hang on."""

import asyncio
import gc
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from llm.doubles import CHAT, MODEL, QUESTION, Pauses, retrying, settings_for
from support.fake_llm import EMPTY_CHOICES, FakeLLM, Held, Raw, Reset, Said, Status

from app.domain.sharing import MAX_CALL_TOKENS
from app.pipelines.llm import http_client, transport
from app.pipelines.llm.http_client import HTTPClient
from app.pipelines.llm.interface import Chat, LLMSettings, LLMUnavailableError, Message
from app.pipelines.llm.retrying import FailedTryError
from app.pipelines.llm.sdk_client import SDKClient
from app.pipelines.llm.transport import Key, answer_of

KEY = "sk-secret-1234567890"


@pytest.fixture
async def client(fake: FakeLLM) -> AsyncGenerator[HTTPClient, None]:
    made = HTTPClient(settings_for(fake, max_retries=0))
    yield made
    await made.close()


async def test_a_call_says_what_the_protocol_wants(fake: FakeLLM, client: HTTPClient) -> None:
    form = {"type": "json_object"}
    await client.complete(Chat(QUESTION, form, 100))
    call = fake.calls[0]
    assert call.path == "/v1/chat/completions"
    assert call.request == {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "You name themes."},
            {"role": "user", "content": "Name this theme: parking."},
        ],
        "max_tokens": 100,
        "temperature": 0.0,
        "seed": 0,
        "response_format": form,
    }
    assert "authorization" not in call.headers


async def test_a_question_with_half_an_emoji_is_sent(fake: FakeLLM, client: HTTPClient) -> None:
    await client.complete(Chat((Message("user", "half \ud83d"),), None, 100))
    assert fake.calls[0].request["messages"][0]["content"] == "half \ufffd"


async def test_an_option_is_left_out_of_each_call_whose_refusal_names_it(fake: FakeLLM) -> None:
    client = HTTPClient(settings_for(fake, max_retries=0))
    refused = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    fake.script(*[Status(400, {}, {"error": {"message": refused}})] * 4)
    completions = await asyncio.gather(*(client.complete(CHAT) for _ in range(4)))
    await client.close()
    assert len(completions) == 4
    assert [sorted(call.request.keys() & LIMITS) for call in fake.calls] == [
        *[["max_tokens"]] * 4,
        *[["max_completion_tokens"]] * 4,
    ]


LIMITS = {"max_tokens", "max_completion_tokens"}


async def test_an_option_that_a_model_refuses_is_left_out(
    fake: FakeLLM, client: HTTPClient
) -> None:
    refused = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    fixed = "Unsupported value: 'temperature' does not support 0 with this model."
    fake.script(
        Status(400, {}, {"error": {"message": refused}}),
        Status(400, {}, {"error": {"message": fixed}}),
    )
    await client.complete(CHAT)
    await client.complete(CHAT)
    for call in fake.calls[2:]:
        assert call.request["max_completion_tokens"] == 100
        assert not call.request.keys() & {"max_tokens", "temperature"}
    assert len(fake.calls) == 4


def _answer(message: Any, **choice: Any) -> Raw:
    return Raw({"choices": [{"message": message, "finish_reason": "stop", **choice}]})


@pytest.mark.parametrize(
    ("answer", "text", "reason"),
    [
        (_answer({"content": "yes"}), "yes", "stop"),
        (_answer({"content": "yes"}, finish_reason=None), "yes", "stop"),
        (_answer({"content": [{"type": "text", "text": "y"}, {"text": "es"}]}), "yes", "stop"),
        (_answer({"content": "yes", "refusal": ""}), "yes", "stop"),
        (_answer({"content": None}), "", "empty"),
        (_answer({"content": " \n"}), " \n", "empty"),
        (_answer({"content": ""}, finish_reason="error"), "", "empty"),
        (_answer({"content": ""}, finish_reason="length"), "", "length"),
        (_answer(None), "", "empty"),
        (_answer({"content": 7}), "", "empty"),
        (_answer({"content": "ye"}, finish_reason="length"), "ye", "length"),
        (_answer({"content": ""}, finish_reason="content_filter"), "", "content_filter"),
        (EMPTY_CHOICES, "", "empty"),
        (Raw({"choices": None}), "", "empty"),
        (Raw({"choices": ["?"]}), "", "empty"),
        (Raw({}), "", "empty"),
    ],
    ids=str,
)
async def test_odd_answers_are_read(
    fake: FakeLLM, client: HTTPClient, answer: Raw, text: str, reason: str
) -> None:
    fake.script(answer)
    completion = await client.complete(CHAT)
    assert (completion.text, completion.finish_reason) == (text, reason)
    assert completion.refusal is None


@pytest.mark.parametrize(
    ("status", "content", "is_charged"),
    [
        (200, b'{"choices": [{"message": {"content": "aaaa', True),
        (200, b"[]", True),
        (200, b'{"error": {"code": 429, "message": "busy"}}', False),
        (200, b'{"error": {"code": 504, "message": "upstream"}}', True),
        (408, b"", True),
        (429, b"", False),
        (500, b"", False),
        (502, b"<html>", False),
        (504, b"", True),
    ],
)
def test_what_may_have_been_generated_counts_as_charged(
    status: int, content: bytes, *, is_charged: bool
) -> None:
    with pytest.raises(FailedTryError) as caught:
        answer_of(status, {}, content, "http://host", Key(None))
    assert caught.value.is_charged is is_charged


@pytest.mark.parametrize(("behaviour", "is_charged"), [(Reset(), True), (None, False)], ids=str)
@pytest.mark.parametrize("client_of", [HTTPClient, SDKClient], ids=["httpx", "sdk"])
async def test_a_request_that_never_left_is_not_charged(
    client_of: Callable[[LLMSettings], HTTPClient], behaviour: Any, *, is_charged: bool
) -> None:
    with FakeLLM() as fake:
        client = client_of(settings_for(fake, max_retries=0))
        if behaviour is not None:
            fake.script(behaviour)
            with pytest.raises(LLMUnavailableError) as caught:
                await client.complete(CHAT)
    if behaviour is None:
        with pytest.raises(LLMUnavailableError) as caught:
            await client.complete(CHAT)
    await client.close()
    assert caught.value.is_charged is is_charged


@pytest.mark.parametrize("code", [["x"], {"of": "x"}, 10**400, True, None], ids=str)
@pytest.mark.parametrize("status", [200, 400, 429, 500])
def test_an_error_of_any_shape_is_a_failed_try(status: int, code: Any) -> None:
    content = json.dumps({"error": {"code": code, "message": "no"}}).encode()
    with pytest.raises(FailedTryError, match="no"):
        answer_of(status, {}, content, "http://host", Key(None))


async def test_tokens_beyond_all_bounds_are_cut_to_them(fake: FakeLLM, client: HTTPClient) -> None:
    usage = {"prompt_tokens": 10**400, "completion_tokens": 10**400}
    fake.script(Raw({"choices": [{"message": {"content": "yes"}}], "usage": usage}))
    completion = await client.complete(CHAT)
    assert completion.prompt_tokens == completion.completion_tokens == MAX_CALL_TOKENS


async def test_a_refusal_is_told_apart(fake: FakeLLM, client: HTTPClient) -> None:
    fake.script(Said(None, refusal="I can't help with that."))
    completion = await client.complete(CHAT)
    assert completion.refusal == "I can't help with that."


async def test_tokens_are_counted_for_a_server_that_does_not(
    fake: FakeLLM, client: HTTPClient
) -> None:
    fake.script(_answer({"content": "x" * 400}))
    completion = await client.complete(CHAT)
    assert completion.completion_tokens == 104
    assert completion.prompt_tokens == 4 + 4 + 4 + 7


async def test_a_redirect_takes_neither_key_nor_answers_elsewhere(
    fake: FakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_KEY", KEY)
    with FakeLLM() as thief:
        fake.script(Status(307, {"location": f"{thief.url}/chat/completions"}))
        client = HTTPClient(settings_for(fake, api_key_env="LLM_KEY"))
        with pytest.raises(LLMUnavailableError, match="not followed"):
            await client.complete(CHAT)
        await client.close()
        assert not thief.calls


async def test_an_endless_answer_is_cut(
    fake: FakeLLM, client: HTTPClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_RESPONSE_BYTES", 1_000)
    fake.script(_answer({"content": "x" * 2_000}))
    with pytest.raises(LLMUnavailableError, match="more than 1000 bytes") as caught:
        await client.complete(CHAT)
    assert caught.value.is_final


async def test_an_answer_nested_beyond_reason_is_a_failure(
    fake: FakeLLM, client: HTTPClient
) -> None:
    fake.script(Raw(b'{"choices":' + b"[" * 200_000))
    with pytest.raises(LLMUnavailableError):
        await client.complete(CHAT)


async def test_cancelling_ends_the_request_in_flight(fake: FakeLLM, client: HTTPClient) -> None:
    fake.script(Held())
    call = asyncio.ensure_future(client.complete(CHAT))
    await fake.until(lambda: fake.under_way == 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await fake.until(lambda: fake.under_way == 0)
    assert fake.calls[0].is_abandoned


async def test_closing_twice_is_harmless(fake: FakeLLM) -> None:
    client = HTTPClient(settings_for(fake))
    await client.close()
    await client.close()


# -- the key --------------------------------------------------------------------------------------


async def test_the_key_is_sent_and_never_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LLM_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    told = []

    async def tell(message: str) -> None:
        told.append(message)

    with FakeLLM(key=KEY) as fake:
        settings = settings_for(fake, api_key_env="LLM_KEY", max_retries=1)
        client = HTTPClient(settings, retrying=retrying(Pauses(), max_retries=1, told=tell))
        await client.complete(CHAT)
        echo = {"error": {"message": f"overloaded; your key is {KEY}"}}
        fake.script(Status(503, {}, echo), Status(403, {}, echo))
        with pytest.raises(LLMUnavailableError) as caught:
            await client.complete(CHAT)
        await client.close()
    shown = [
        str(caught.value),
        repr(caught.value),
        repr(client),
        repr(settings),
        caplog.text,
        *told,
        *(repr(vars(held)) for held in gc.get_referents(client) if hasattr(held, "__dict__")),
    ]
    assert "your key is [key]" in shown[0]
    assert not [text for text in shown if KEY in text]


SLASHED = 'sk-a/b"c\\d-1234567890'


def _said(key: str) -> str:
    return json.dumps({"name": f"you sent Bearer {key}"})


def _hidden(key: str) -> str:
    """The key as JSON may write it too."""
    return _said(key).replace("sk-", "\\u0073\\u006B\\u002d").replace("/", "\\/")


@pytest.mark.parametrize("written", [_said, _hidden], ids=["plain", "escaped"])
@pytest.mark.parametrize("key", [KEY, SLASHED])
@pytest.mark.parametrize("client_of", [HTTPClient, SDKClient], ids=["httpx", "sdk"])
async def test_a_key_that_the_server_repeats_is_in_no_answer(
    monkeypatch: pytest.MonkeyPatch,
    client_of: Callable[[LLMSettings], HTTPClient],
    key: str,
    written: Callable[[str], str],
) -> None:
    monkeypatch.setenv("LLM_KEY", key)
    message = {"content": written(key), "refusal": f"not with {key}"}
    with FakeLLM(key=key) as fake:
        fake.script(_answer(message, finish_reason=f"end of {key}"))
        client = client_of(settings_for(fake, api_key_env="LLM_KEY"))
        completion = await client.complete(CHAT)
        await client.close()
    assert json.loads(completion.text) == {"name": "you sent Bearer [key]"}
    assert completion.refusal == "not with [key]"
    assert completion.finish_reason == "end of [key]"


async def test_a_word_that_stands_for_a_key_is_no_secret_in_answers(
    fake: FakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_KEY", "none")
    client = HTTPClient(settings_for(fake, api_key_env="LLM_KEY"))
    fake.script(_answer({"content": "There are none."}))
    assert (await client.complete(CHAT)).text == "There are none."
    await client.close()


def test_a_long_answer_of_escapes_is_looked_through_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LLM_KEY", KEY)
    content = json.dumps({"choices": ["\\" * 1_000_000 + "s" * 1_000_000]}).encode()
    began = time.monotonic()
    answer_of(200, {}, content, "http://host", Key("LLM_KEY"))
    assert time.monotonic() - began < 10


async def test_a_wrong_key_fails_at_once_and_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LLM_KEY", "sk-wrong-key")
    with FakeLLM(key=KEY) as fake:
        client = HTTPClient(settings_for(fake, api_key_env="LLM_KEY"))
        with pytest.raises(LLMUnavailableError, match=r"401.*\[key\]") as caught:
            await client.complete(CHAT)
        await client.close()
        assert caught.value.is_final
        assert len(fake.calls) == 1


@pytest.mark.parametrize("value", [None, "", "two\nlines", "sch\u00f6n"])
def test_a_missing_or_broken_key_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("LLM_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("LLM_KEY", value)
    with pytest.raises(LLMUnavailableError, match="LLM_KEY") as caught:
        HTTPClient(LLMSettings("http://127.0.0.1:1/v1", MODEL, api_key_env="LLM_KEY"))
    assert caught.value.is_final
    assert not value or value not in str(caught.value)


async def test_a_name_and_password_in_the_address_are_not_shown() -> None:
    settings = LLMSettings("http://anna:hunter2@127.0.0.1:1/v1", MODEL, max_retries=0)
    client = HTTPClient(settings)
    with pytest.raises(LLMUnavailableError) as caught:
        await client.complete(CHAT)
    await client.close()
    assert "hunter2" not in str(caught.value) + repr(client)


def test_the_http_library_is_loaded_only_with_a_client() -> None:
    assert "httpx2" not in vars(__import__("app.pipelines.llm.asking", fromlist=["x"]))
    assert http_client.HTTPClient is HTTPClient
