"""When a call is made again, after how long, and what people are told meanwhile."""

import asyncio
import random
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import pytest
from llm.doubles import CHAT, Pauses, retrying, settings_for
from support.fake_llm import BAD_GATEWAY, Drip, FakeLLM, Held, Raw, Reset, Status

from app.pipelines.llm.concurrency import AdaptiveLimit
from app.pipelines.llm.http_client import HTTPClient
from app.pipelines.llm.interface import Completion, LLMUnavailableError
from app.pipelines.llm.retrying import (
    MAX_ASKED_SECONDS,
    MAX_PAUSE_SECONDS,
    BrokenOffError,
    FailedTryError,
    Retrying,
    asked_wait_seconds,
)

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
async def client(fake: FakeLLM, pauses: Pauses) -> AsyncGenerator[HTTPClient, None]:
    made = HTTPClient(settings_for(fake), retrying=retrying(pauses))
    yield made
    await made.close()


@pytest.mark.parametrize(
    "failure",
    [
        *(Status(code) for code in (408, 409, 429, 500, 502, 503, 504, 529)),
        BAD_GATEWAY,
        Raw(b"<html>a captive portal</html>"),
        Raw({"error": {"code": 429, "message": "upstream is busy"}}),
        Raw([]),
        Reset(),
        Reset(after_bytes=40),
    ],
    ids=str,
)
async def test_a_passing_failure_is_tried_again(
    fake: FakeLLM, client: HTTPClient, failure: Any
) -> None:
    fake.script(failure)
    completion = await client.complete(CHAT)
    assert completion.retries == 1
    assert len(fake.calls) == 2


@pytest.mark.parametrize("code", [301, 307, 400, 401, 403, 404, 422, 501])
async def test_a_refusal_for_good_is_not_tried_again(
    fake: FakeLLM, client: HTTPClient, code: int
) -> None:
    fake.script(Status(code, {"location": fake.url}, {"error": {"message": "no such model"}}))
    with pytest.raises(LLMUnavailableError, match=r"no such model|redirects") as caught:
        await client.complete(CHAT)
    assert caught.value.is_final
    assert caught.value.status == code
    assert len(fake.calls) == 1


async def test_a_spent_account_is_not_tried_again(fake: FakeLLM, client: HTTPClient) -> None:
    fake.script(Status(429, {}, {"error": {"message": "pay", "code": "insufficient_quota"}}))
    with pytest.raises(LLMUnavailableError) as caught:
        await client.complete(CHAT)
    assert caught.value.is_final
    assert len(fake.calls) == 1


async def test_retries_end(fake: FakeLLM, client: HTTPClient, pauses: Pauses) -> None:
    fake.always = Status(503)
    with pytest.raises(LLMUnavailableError, match="503") as caught:
        await client.complete(CHAT)
    assert not caught.value.is_final
    assert len(fake.calls) == 6
    assert len(pauses) == 5


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9),
        ({"retry-after": "Mon, 30 Nov 2026 12:00:30 GMT"}, 30),
        ({"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT"}, 0),
        # The server's clock is an hour ahead of ours.
        (
            {
                "retry-after": "Mon, 30 Nov 2026 13:00:20 GMT",
                "date": "Mon, 30 Nov 2026 13:00:00 GMT",
            },
            20,
        ),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "later"}, None),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:00 +99999999999999999999"}, None),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 -2300"}, None),
        ({"retry-after": "Fri, 01 Jan 99999 00:00:00 GMT"}, None),
        ({}, None),
    ],
)
def test_every_form_of_retry_after_is_understood(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert asked_wait_seconds(headers, lambda: NOW) == seconds


async def test_what_the_server_asks_for_is_waited(
    fake: FakeLLM, client: HTTPClient, pauses: Pauses
) -> None:
    fake.script(Status(429, {"Retry-After": "7"}), Status(503, {"retry-after-ms": "1500"}))
    await client.complete(CHAT)
    # The jitter of these tests is always at its ceiling, here of a second.
    assert pauses == [7.0 + 1.0, 1.5 + 1.0]


@pytest.mark.parametrize("asked", ["0", "Mon, 30 Nov 2020 11:00:00 GMT"])
async def test_a_wait_of_nothing_is_no_leave_to_come_at_once(
    fake: FakeLLM, client: HTTPClient, pauses: Pauses, asked: str
) -> None:
    fake.script(*[Status(429, {"retry-after": asked})] * 5)
    await client.complete(CHAT)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0]


async def test_calls_that_were_told_the_same_wait_come_back_apart() -> None:
    pauses = Pauses()
    retries = Retrying(200, AdaptiveLimit(1), chance=random.Random(1), sleep=pauses)  # noqa: S311

    async def fail() -> None:
        raise FailedTryError("busy", 429, wait_seconds=5.0)

    with pytest.raises(FailedTryError):
        await retries.call(fail)
    assert 5.0 <= min(pauses) < 5.1
    assert 5.9 < max(pauses) <= 6.0


async def test_an_hour_is_not_waited(fake: FakeLLM, client: HTTPClient, pauses: Pauses) -> None:
    fake.script(Status(429, {"retry-after": "3600"}))
    with pytest.raises(LLMUnavailableError, match="asks to wait 3600 s") as caught:
        await client.complete(CHAT)
    assert not caught.value.is_final
    assert not pauses
    assert len(fake.calls) == 1


async def test_the_longest_wait_allowed_is_waited(
    fake: FakeLLM, client: HTTPClient, pauses: Pauses
) -> None:
    fake.script(Status(429, {"retry-after": str(MAX_ASKED_SECONDS)}))
    await client.complete(CHAT)
    assert pauses == [MAX_ASKED_SECONDS + 1.0]


async def test_the_ceiling_of_the_pause_doubles(
    fake: FakeLLM, client: HTTPClient, pauses: Pauses
) -> None:
    fake.script(*[Status(500)] * 5)
    await client.complete(CHAT)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0]


async def test_the_pause_is_drawn_from_all_below_the_ceiling() -> None:
    pauses = Pauses()
    retries = Retrying(200, AdaptiveLimit(1), chance=random.Random(1), sleep=pauses)  # noqa: S311

    async def fail() -> None:
        raise FailedTryError("away")

    with pytest.raises(FailedTryError):
        await retries.call(fail)
    late = sorted(pauses[10:])
    assert late[0] < MAX_PAUSE_SECONDS * 0.1
    assert MAX_PAUSE_SECONDS * 0.9 < late[-1] <= MAX_PAUSE_SECONDS


async def test_people_are_told_of_the_rate_limit(fake: FakeLLM) -> None:
    told = []

    async def tell(message: str) -> None:
        told.append(message)

    client = HTTPClient(settings_for(fake), retrying=retrying(Pauses(), told=tell))
    fake.script(Status(429, {"retry-after": "12"}), Status(500))
    await client.complete(CHAT)
    await client.close()
    assert told[0].startswith("waiting for the LLM's rate limit, 13 s: ")
    assert told[1].startswith("waiting to try again, 2 s: ")


@pytest.mark.parametrize("silence", [Held(), Drip(pause_seconds=0.05)], ids=["none", "drip"])
async def test_an_answer_must_be_whole_in_time(fake: FakeLLM, silence: Any) -> None:
    settings = settings_for(fake, timeout_seconds=0.5)
    client = HTTPClient(settings, retrying=retrying(Pauses(), max_retries=1))
    fake.script(silence, silence)
    with pytest.raises(LLMUnavailableError, match=r"within 0\.5 s"):
        await client.complete(CHAT)
    await client.close()
    assert len(fake.calls) == 2
    await fake.until(lambda: all(call.is_abandoned for call in fake.calls))


async def test_a_server_that_is_not_there_is_unavailable(pauses: Pauses) -> None:
    with FakeLLM() as gone:
        settings = settings_for(gone)
    client = HTTPClient(settings, retrying=retrying(pauses, max_retries=2))
    with pytest.raises(LLMUnavailableError, match=r"no answer from http://127\.0\.0\.1"):
        await client.complete(CHAT)
    await client.close()
    assert len(pauses) == 2


async def test_a_try_that_is_broken_off_under_way_is_told_and_one_that_waits_is_not() -> None:
    told: list[LLMUnavailableError] = []
    begun = asyncio.Event()
    retries = Retrying(5, AdaptiveLimit(1))

    async def note(error: LLMUnavailableError) -> None:
        told.append(error)

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    calls = [asyncio.ensure_future(retries.call(hang, note)) for _ in range(3)]
    await begun.wait()
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in told] == [BrokenOffError]
    assert told[0].is_charged


# -- concurrency ----------------------------------------------------------------------------------


async def test_no_more_calls_are_under_way_than_allowed(fake: FakeLLM) -> None:
    client = HTTPClient(settings_for(fake), retrying=retrying(Pauses(), AdaptiveLimit(3)))
    fake.script(*[Held()] * 3)
    calls = [asyncio.ensure_future(client.complete(CHAT)) for _ in range(8)]
    await fake.until(lambda: fake.under_way == 3)
    fake.release()
    await asyncio.gather(*calls)
    await client.close()
    assert fake.most_under_way == 3


async def test_calls_halve_at_429_and_grow_again() -> None:
    limit = AdaptiveLimit(8)
    async with limit.slot() as slot:
        slot.is_limited()
    assert limit.now == 4
    for _ in range(4):
        async with limit.slot() as slot:
            slot.went_well()
    assert limit.now == 5
    for _ in range(100):
        async with limit.slot() as slot:
            slot.went_well()
    assert limit.now == 8


async def test_one_burst_of_429_halves_once_and_never_below_one() -> None:
    limit = AdaptiveLimit(4)
    async with limit.slot() as first, limit.slot() as second:
        first.is_limited()
        second.is_limited()
    assert limit.now == 2
    for _ in range(5):
        async with limit.slot() as slot:
            slot.is_limited()
    assert limit.now == 1


async def test_a_429_of_the_server_lowers_the_limit(fake: FakeLLM) -> None:
    limit = AdaptiveLimit(4)
    client = HTTPClient(settings_for(fake), retrying=retrying(Pauses(), limit))
    fake.script(Status(429))
    await client.complete(CHAT)
    await client.close()
    assert limit.now == 2


async def test_a_call_that_waits_for_the_rate_limit_keeps_its_place(fake: FakeLLM) -> None:
    waiting, go_on = asyncio.Event(), asyncio.Event()

    async def pause(_: float) -> None:
        waiting.set()
        await go_on.wait()

    retries = Retrying(5, AdaptiveLimit(1), sleep=pause)
    client = HTTPClient(settings_for(fake), retrying=retries)
    fake.script(Status(429))
    calls: list[asyncio.Future[Completion]] = [
        asyncio.ensure_future(client.complete(CHAT)) for _ in range(2)
    ]
    await waiting.wait()
    assert len(fake.calls) == 1
    go_on.set()
    await asyncio.gather(*calls)
    await client.close()
    assert len(fake.calls) == 3


async def test_a_cancelled_wait_gives_its_place_back() -> None:
    limit = AdaptiveLimit(1)
    async with limit.slot():
        waiting = asyncio.ensure_future(limit.slot().__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(5), limit.slot():
        pass
