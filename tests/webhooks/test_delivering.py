"""From the end of a job to an endpoint on this machine: signed, retried, given up, replayed."""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import asyncpg
import pytest
import standardwebhooks
from support.hook_server import HookServer, answering, hook_server
from support.waiting import eventually

from app.db.postgres.adapter import PostgresJobsDB
from app.domain import webhooks
from app.domain.errors import DatabaseUnavailableError
from app.domain.webhooks import (
    MAX_TRIES,
    SCHEDULE_SECONDS,
    Answer,
    Delivery,
    DeliveryStatus,
    DueDelivery,
    TryEnded,
    Webhook,
    WebhookEvent,
    judge,
    new_secret,
    signature,
)
from app.telemetry import Event, Telemetry
from app.webhooks import delivering, sending
from app.webhooks.addresses import AddressRules
from app.webhooks.delivering import DeliveryService

HERE = AddressRules.parse(["127.0.0.1"])
SECRET = new_secret()


@pytest.fixture
async def db(database_url: str) -> AsyncGenerator[PostgresJobsDB, None]:
    adapter = PostgresJobsDB(database_url, default_pipeline="demo-echo")
    yield adapter
    await adapter.close()


@pytest.fixture
async def hooks() -> AsyncGenerator[HookServer, None]:
    async with hook_server() as server:
        yield server


@asynccontextmanager
async def delivered_by(
    db: PostgresJobsDB, events: list[Event] | None = None, lease_seconds: float = 60.0
) -> AsyncGenerator[DeliveryService, None]:
    telemetry = Telemetry([] if events is None else [events.append])
    service = DeliveryService(db, HERE, telemetry, poll_seconds=0.05, lease_seconds=lease_seconds)
    await service.start()
    try:
        yield service
    finally:
        await service.stop()
        assert not service._tries


async def endpoint(db: PostgresJobsDB, hooks: HookServer) -> Webhook:
    return await db.insert_webhook(hooks.url, [*WebhookEvent], SECRET)


async def ended_job(db: PostgresJobsDB) -> str:
    job = await db.insert_pending_job({})
    await db.cancel_job(job)
    return job


async def until(db: PostgresJobsDB, webhook: Webhook, status: str, attempt: int) -> Delivery:
    found: list[Delivery] = []

    async def is_so() -> bool:
        found[:] = await db.list_deliveries(webhook.id, 1)
        # A claim counts the try; its end leaves a word.
        return [(d.status, d.attempt) for d in found] == [(status, attempt)] and (
            found[0].last_error or found[0].last_status_code
        ) is not None

    await eventually(is_so, f"a delivery that is {status} after {attempt} tries")
    return found[0]


async def make_due(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("update haulage.webhook_deliveries set next_at = now()")
    await connection.close()


def test_signatures_are_those_of_the_standard() -> None:
    """The example that its libraries are tested with."""
    assert (
        signature(
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            b'{"test": 2432232314}',
        )
        == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


async def test_messages_are_signed_with_the_new_secret_and_with_the_old_one(
    db: PostgresJobsDB, hooks: HookServer
) -> None:
    webhook = await endpoint(db, hooks)
    other = new_secret()
    await db.rotate_secret(webhook.id, other, 60.0)
    async with delivered_by(db):
        await ended_job(db)
        got = await hooks.next()

    assert len(got.headers["webhook-signature"].split(" ")) == 2
    for secret in (SECRET, other):
        told = standardwebhooks.Webhook(secret).verify(got.body, dict(got.headers))
        assert told["type"] == "job.cancelled"
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(new_secret()).verify(got.body, dict(got.headers))


async def test_the_end_of_a_job_is_told_signed_and_thin(
    db: PostgresJobsDB, hooks: HookServer
) -> None:
    webhook = await endpoint(db, hooks)
    async with delivered_by(db):
        job = await ended_job(db)
        got = await hooks.next()
        delivery = await until(db, webhook, "delivered", 1)

    assert got.line == "POST /hook HTTP/1.1"
    assert got.headers["content-type"] == "application/json"
    assert got.id == delivery.id
    assert abs(int(got.headers["webhook-timestamp"]) - time.time()) < 30
    signed = f"{got.id}.{got.headers['webhook-timestamp']}.".encode() + got.body
    mac = hmac.new(base64.b64decode(SECRET[6:]), signed, hashlib.sha256).digest()
    assert got.headers["webhook-signature"] == f"v1,{base64.b64encode(mac).decode()}"
    body = json.loads(got.body)
    assert body["type"] == "job.cancelled"
    assert datetime.fromisoformat(body["timestamp"]) == delivery.created_at
    assert body["data"] == {
        "id": job,
        "status": "cancelled",
        "pipeline": "demo-echo",
        "path": f"/jobs/{job}",
    }
    assert delivery.last_status_code == 204


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (answering(500), 500),
        (answering(404), 404),
        (answering(302, "Location: /other"), 302),
        (answering(304), 304),
        (None, None),
        (b"nonsense\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000, None),
    ],
)
async def test_whatever_is_no_success_is_tried_again_under_the_same_id(
    db: PostgresJobsDB,
    hooks: HookServer,
    database_url: str,
    answer: bytes | None,
    code: int | None,
) -> None:
    webhook = await endpoint(db, hooks)
    hooks.script.append(answer)
    async with delivered_by(db):
        await ended_job(db)
        first = await hooks.next()
        failed = await until(db, webhook, "pending", 1)
        assert failed.last_status_code == code
        assert failed.last_error
        wait = failed.next_at - datetime.now(UTC)
        assert timedelta(seconds=1) < wait < timedelta(seconds=6)

        await make_due(database_url)
        second = await hooks.next()
        await until(db, webhook, "delivered", 2)

    assert (second.id, second.body) == (first.id, first.body)


async def test_an_endpoint_that_is_gone_is_switched_off(
    db: PostgresJobsDB, hooks: HookServer
) -> None:
    webhook = await endpoint(db, hooks)
    hooks.script.append(answering(410))
    events: list[Event] = []
    async with delivered_by(db, events):
        await ended_job(db)

        async def is_off() -> bool:
            known = await db.get_webhook(webhook.id)
            return known is not None and not known.is_active

        await eventually(is_off, "the endpoint is switched off")
        assert (await until(db, webhook, "failed", 1)).last_status_code == 410
        await happens(lambda: bool(events), "it is told")
    assert [event.name for event in events] == ["webhook.disabled"]


async def happens(look: Callable[[], bool], what: str) -> None:
    async def looking() -> bool:
        return look()

    await eventually(looking, what)


async def test_an_endpoint_that_hangs_costs_a_try_and_nobody_else_one(
    db: PostgresJobsDB, hooks: HookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "TRY_SECONDS", 0.5)
    hanging = await endpoint(db, hooks)
    hooks.may_answer.clear()
    async with hook_server() as others:
        other = await db.insert_webhook(others.url, [*WebhookEvent], SECRET)
        async with delivered_by(db):
            for _ in range(delivering.MAX_OF_ONE_ENDPOINT + 3):
                await ended_job(db)

            async def all_told() -> bool:
                told = await db.list_deliveries(other.id, 50)
                return {d.status for d in told} == {"delivered"}

            await eventually(all_told, "the other endpoint has everything")
            failed = (await db.list_deliveries(hanging.id, 50))[-1]
            most = delivering.MAX_OF_ONE_ENDPOINT
            await happens(lambda: len(hooks.got) > most, "the rest is tried")
    assert failed.status == "pending"


async def test_no_more_than_some_messages_to_one_endpoint_are_under_way(
    db: PostgresJobsDB, hooks: HookServer
) -> None:
    most = delivering.MAX_OF_ONE_ENDPOINT
    webhook = await endpoint(db, hooks)
    hooks.may_answer.clear()
    for _ in range(most + 3):
        await ended_job(db)
    async with delivered_by(db) as service:
        await happens(lambda: len(hooks.got) == most, "as many as may are under way")
        assert await service._deliver_once() == 0
        waiting = await db.list_deliveries(webhook.id, 50)
        assert sorted(d.attempt for d in waiting) == [0] * 3 + [1] * most
        hooks.may_answer.set()
        await happens(lambda: len(hooks.got) == most + 3, "the rest follows")


async def test_messages_that_end_apart_make_no_more_under_way(
    db: PostgresJobsDB, hooks: HookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint with one place free is given one message, not as many as it has places."""
    most = delivering.MAX_OF_ONE_ENDPOINT
    await endpoint(db, hooks)
    for _ in range(3 * most):
        await ended_job(db)
    ends = [asyncio.Event() for _ in range(3 * most)]
    sender = Held(ends)
    service = DeliveryService(
        db, HERE, Telemetry([]), poll_seconds=0.05, make_sender=lambda _: sender
    )
    await service.start()
    try:
        for ended, end in enumerate(ends):
            begun = min(len(ends), most + ended)
            await happens(lambda wanted=begun: sender.begun >= wanted, "as many as may be")  # type: ignore[misc]
            end.set()
    finally:
        await service.stop()
    assert sender.peak == most


class Held:
    """A sender whose nth try ends when the nth event is set."""

    def __init__(self, ends: list[asyncio.Event]) -> None:
        self.ends = ends
        self.left = len(ends)
        self.begun = self.under_way = self.peak = 0

    async def send(self, _: DueDelivery) -> Answer:
        end = self.ends[self.begun]
        self.begun += 1
        self.under_way += 1
        self.peak = max(self.peak, self.under_way)
        await end.wait()
        self.under_way -= 1
        self.left -= 1
        return Answer(204)

    async def close(self) -> None:
        pass


class Hanging:
    """A sender to many endpoints, of which one answers."""

    def __init__(self, healthy: str) -> None:
        self.healthy = healthy
        self.told: list[str] = []
        self.hung: Counter[str] = Counter()

    async def send(self, delivery: DueDelivery) -> Answer:
        if delivery.webhook_id == self.healthy:
            self.told.append(delivery.id)
            return Answer(204)
        self.hung[delivery.webhook_id] += 1
        try:
            await asyncio.sleep(0.3)
        finally:
            self.hung[delivery.webhook_id] -= 1
        return Answer(error="no answer")

    async def close(self) -> None:
        pass


async def test_endpoints_that_hang_take_no_turn_from_one_that_answers(
    db: PostgresJobsDB, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than there are turns, each with a backlog that is older."""
    monkeypatch.setattr(delivering, "MAX_AT_ONCE", 10)
    monkeypatch.setattr(webhooks, "SCHEDULE_SECONDS", (0.0,) * 9)
    dead = [
        await db.insert_webhook(f"https://{n}.example/", [*WebhookEvent], "x") for n in range(4)
    ]
    for _ in range(25):
        await ended_job(db)
    healthy = await db.insert_webhook("https://here.example/", [*WebhookEvent], SECRET)
    for webhook in dead[2:]:
        await db.disable_webhook(webhook.id, "there are enough of them")
    sender = Hanging(healthy.id)
    service = DeliveryService(
        db, HERE, Telemetry([]), poll_seconds=0.05, make_sender=lambda _: sender
    )
    await service.start()
    try:
        await happens(lambda: sum(sender.hung.values()) == 10, "every turn is taken")
        for _ in range(3):
            await ended_job(db)
        before = time.monotonic()
        await happens(lambda: len(sender.told) == 3, "the one that answers is told")
        assert time.monotonic() - before < 1.0
        # Who did not answer is asked by one message at a time.
        await happens(lambda: max(sender.hung.values()) <= 1, "the others are probed")
    finally:
        await service.stop()


async def test_a_stop_breaks_off_what_is_under_way_and_leaves_it_due(
    db: PostgresJobsDB, hooks: HookServer
) -> None:
    webhook = await endpoint(db, hooks)
    hooks.may_answer.clear()
    began = time.monotonic()
    async with delivered_by(db):
        await ended_job(db)
        first = await hooks.next()
        began = time.monotonic()
    assert time.monotonic() - began < 2.0
    [left] = await db.list_deliveries(webhook.id, 9)
    assert (left.status, left.attempt, left.last_error) == ("pending", 0, None)

    hooks.may_answer.set()
    hooks.arrived.clear()
    async with delivered_by(db):
        assert (await hooks.next()).id == first.id
        await until(db, webhook, "delivered", 1)


async def test_two_processes_send_each_message_once(db: PostgresJobsDB, hooks: HookServer) -> None:
    webhook = await endpoint(db, hooks)
    jobs = [await ended_job(db) for _ in range(12)]
    async with delivered_by(db), delivered_by(db):

        async def all_told() -> bool:
            told = await db.list_deliveries(webhook.id, 50)
            return [d.status for d in told] == ["delivered"] * len(jobs)

        await eventually(all_told, "everything is delivered")
    assert len({got.id for got in hooks.got}) == len(hooks.got) == len(jobs)


# -- what follows from an answer --------------------------------------------------------------


def test_the_schedule_is_that_of_the_standard() -> None:
    delays = [
        judge(attempt, Answer(500)).delay_seconds for attempt in range(1, len(SCHEDULE_SECONDS) + 1)
    ]
    assert delays == [5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400]
    last = judge(len(SCHEDULE_SECONDS) + 1, Answer(500))
    assert last.status is DeliveryStatus.FAILED
    assert judge(1, Answer(500), jitter=1.1).delay_seconds == pytest.approx(5.5)


@pytest.mark.parametrize("code", [200, 201, 202, 204, 299])
def test_success_is_any_2xx(code: int) -> None:
    assert judge(1, Answer(code)).status is DeliveryStatus.DELIVERED


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        (Answer(429, retry_after_seconds=60), 60),
        (Answer(503, retry_after_seconds=60), 60),
        (Answer(503, retry_after_seconds=1), 5),
        (Answer(503, retry_after_seconds=1e9), 86_400),
        (Answer(500, retry_after_seconds=60), 5),
        (Answer(error="away"), 5),
    ],
)
def test_who_is_busy_may_say_until_when(answer: Answer, seconds: float) -> None:
    assert judge(1, answer).delay_seconds == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        ("9" * 50, 999_999_999.0),
        ("-1", None),
        ("soon", None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("1 Jan 99999999999999999999999 00:00:00 +0000", None),
        ("1 Jan 2030 00:00:00 +99999999999999999999", None),
        ("1 Jan 0001 00:00:00 +2359", 0.0),
        ("31 Dec 9999 23:59:59 -2359", pytest.approx(2.5e11, rel=0.2)),
        ("1 Jan 2030 99999999999999:00:00 GMT", None),
        ("\u0663", 3.0),
        ("\u00b2", None),
    ],
)
def test_a_wait_is_seconds_or_a_date(text: str | None, seconds: float | None) -> None:
    assert sending._retry_after_seconds(text) == seconds


def test_a_wait_until_a_date_counts_from_now() -> None:
    text = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    assert sending._retry_after_seconds(text) == pytest.approx(3_600, abs=60)


async def test_the_wait_that_an_endpoint_asks_for_is_kept(
    db: PostgresJobsDB, hooks: HookServer
) -> None:
    webhook = await endpoint(db, hooks)
    hooks.script.append(answering(429, "Retry-After: 1000"))
    async with delivered_by(db):
        await ended_job(db)
        waiting = await until(db, webhook, "pending", 1)
    assert timedelta(seconds=900) < waiting.next_at - datetime.now(UTC) <= timedelta(seconds=1000)


ODD_DATE = "Retry-After: 1 Jan 99999999999999999999999 00:00:00 +0000"


@pytest.mark.parametrize(("code", "status"), [(200, "delivered"), (503, "pending")])
async def test_an_odd_wait_is_no_wait(
    db: PostgresJobsDB, hooks: HookServer, code: int, status: str
) -> None:
    webhook = await endpoint(db, hooks)
    hooks.script.append(answering(code, ODD_DATE))
    async with delivered_by(db, lease_seconds=0.3):
        await ended_job(db)
        assert (await until(db, webhook, status, 1)).last_status_code == code
    assert len(hooks.got) == 1


class Broken:
    """A sender with a fault of its own."""

    tries = 0

    async def send(self, _: DueDelivery) -> Answer:
        self.tries += 1
        raise OverflowError("a fault")

    async def close(self) -> None:
        pass


async def test_an_error_of_ours_is_a_failed_try(db: PostgresJobsDB, hooks: HookServer) -> None:
    webhook = await endpoint(db, hooks)
    sender = Broken()
    telemetry = Telemetry([])
    service = DeliveryService(
        db, HERE, telemetry, poll_seconds=0.05, lease_seconds=0.2, make_sender=lambda _: sender
    )
    await service.start()
    try:
        await ended_job(db)
        waiting = await until(db, webhook, "pending", 1)
    finally:
        await service.stop()
    assert waiting.last_error == "could not be sent: OverflowError"
    assert waiting.next_at - datetime.now(UTC) > timedelta(seconds=1)
    assert sender.tries == 1


async def test_what_kills_its_process_at_every_try_is_given_up(
    db: PostgresJobsDB, hooks: HookServer
) -> None:
    webhook = await endpoint(db, hooks)
    await ended_job(db)
    for _ in range(MAX_TRIES):
        assert await db.claim_deliveries(1, 1, {}, 0.0)
    async with delivered_by(db):
        given_up = await until(db, webhook, "failed", MAX_TRIES + 1)
    assert given_up.last_error == delivering.NEVER_ENDED
    assert not hooks.got


class Flaky(PostgresJobsDB):
    """A store that is away for the first claim and for the first word of a try's end."""

    claims = ends = 0

    async def claim_deliveries(
        self, limit: int, per_webhook: int, taken: Mapping[str, int], lease_seconds: float
    ) -> list[DueDelivery]:
        self.claims += 1
        if self.claims == 1:
            raise DatabaseUnavailableError("away")
        return await super().claim_deliveries(limit, per_webhook, taken, lease_seconds)

    async def end_try(self, delivery: DueDelivery, ended: TryEnded) -> bool:
        self.ends += 1
        if self.ends == 1:
            raise DatabaseUnavailableError("away")
        return await super().end_try(delivery, ended)


async def test_what_could_not_be_written_is_sent_again_under_the_same_id(
    db: PostgresJobsDB, hooks: HookServer, database_url: str
) -> None:
    webhook = await endpoint(db, hooks)
    await ended_job(db)
    flaky = Flaky(database_url)
    events: list[Event] = []
    async with delivered_by(flaky, events, lease_seconds=0.3):
        await until(db, webhook, "delivered", 2)
    await flaky.close()

    assert [got.id for got in hooks.got] == [hooks.got[0].id] * 2
    assert events[0].name == "loop.failed"
