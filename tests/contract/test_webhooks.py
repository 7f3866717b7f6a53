"""Deliveries: there with the end of a job and not before, claimed by one, written by that one."""

import asyncio
from datetime import timedelta

import pytest
from contract.steps import RAISED, claimed, complete, given_back, new_job
from contract.stores import Store
from support.waiting import eventually

from app.db.ids import new_id
from app.db.interface import DBInterface
from app.domain.lifecycle import Cancelled, decide
from app.domain.webhooks import (
    MAX_OLD_SECRETS,
    Delivery,
    DeliveryStatus,
    Replay,
    TryEnded,
    Webhook,
    WebhookEvent,
    new_secret,
)

LATER = TryEnded(DeliveryStatus.PENDING, 3_600.0, 500, "answered 500")
NOW = TryEnded(DeliveryStatus.PENDING, 0.0, 500, "answered 500")
DELIVERED = TryEnded(DeliveryStatus.DELIVERED, 0.0, 204, None)


async def endpoint(db: DBInterface, *events: WebhookEvent) -> Webhook:
    return await db.insert_webhook(
        "https://hooks.example/x", events or tuple(WebhookEvent), new_secret()
    )


async def delivered_to(db: DBInterface, webhook: Webhook) -> list[tuple[str, str]]:
    return [(d.job_id, d.event) for d in await db.list_deliveries(webhook.id, 100)]


async def only(db: DBInterface, webhook: Webhook) -> Delivery:
    [delivery] = await db.list_deliveries(webhook.id, 100)
    return delivery


async def test_every_kind_of_end_is_told_once_to_those_who_want_it(db: DBInterface) -> None:
    every = await endpoint(db)
    failures = await endpoint(db, WebhookEvent.FAILED)
    completed = await claimed(db)
    assert await complete(db, completed)
    assert not await complete(db, completed)  # repeated, its answer got lost
    failed = await claimed(db)
    await db.finish_job(failed.claim, decide(RAISED, failed))
    pending = await new_job(db, priority=-1)
    await db.cancel_job(pending)
    await db.cancel_job(pending)
    running = await claimed(db)
    await db.cancel_job(running.id)
    assert len(await delivered_to(db, every)) == 3  # not before its processes have ended
    await db.finish_job(running.claim, decide(Cancelled(), running))

    assert await delivered_to(db, every) == [
        (running.id, "job.cancelled"),
        (pending, "job.cancelled"),
        (failed.id, "job.failed"),
        (completed.id, "job.completed"),
    ]
    assert await delivered_to(db, failures) == [(failed.id, "job.failed")]


async def test_what_does_not_end_a_job_is_not_told(db: DBInterface) -> None:
    every = await endpoint(db)
    await new_job(db, priority=-1)
    await given_back(db, await claimed(db))
    retried = await claimed(db, max_attempts=3, priority=5)
    await db.finish_job(retried.claim, decide(RAISED, retried))

    assert await delivered_to(db, every) == []


async def test_a_job_that_ends_again_is_told_again(db: DBInterface) -> None:
    every = await endpoint(db)
    job = await claimed(db)
    await complete(db, job)
    await db.retry_job(job.id)
    await db.cancel_job(job.id)

    assert [event for _, event in await delivered_to(db, every)] == [
        "job.cancelled",
        "job.completed",
    ]


async def test_a_due_delivery_goes_to_one_claimer_and_has_all_that_is_sent(
    db: DBInterface,
) -> None:
    secret = new_secret()
    webhook = await db.insert_webhook("https://hooks.example/x", [*WebhookEvent], secret)
    job = await claimed(db, pipeline="demo-echo")
    await complete(db, job)

    claims = await asyncio.gather(*(db.claim_deliveries(9, 9, {}, 60.0) for _ in range(5)))

    [[due]] = [found for found in claims if found]
    assert (due.webhook_id, due.url, list(due.secrets)) == (webhook.id, webhook.url, [secret])
    assert (due.job_id, due.pipeline, due.event) == (job.id, "demo-echo", "job.completed")
    assert due.attempt == 1
    assert secret not in repr(due)
    assert await db.end_try(due, DELIVERED)
    delivery = await only(db, webhook)
    assert (delivery.status, delivery.attempt, delivery.last_status_code) == ("delivered", 1, 204)
    assert delivery.delivered_at is not None
    assert await db.claim_deliveries(9, 9, {}, 60.0) == []


async def signing(db: DBInterface) -> list[str]:
    """What the only endpoint's next message is signed with."""
    await db.cancel_job(await new_job(db))
    [due] = await db.claim_deliveries(9, 9, {}, 60.0)
    assert await db.end_try(due, DELIVERED)
    return list(due.secrets)


async def test_old_secrets_are_good_for_their_time_beside_the_new_one(db: DBInterface) -> None:
    secrets = [new_secret() for _ in range(4)]
    webhook = await db.insert_webhook("https://hooks.example/x", [*WebhookEvent], secrets[0])

    first = await db.rotate_secret(webhook.id, secrets[1], 3_600.0)
    assert first is not None
    assert first.is_done
    assert await signing(db) == [secrets[1], secrets[0]]
    # A longer time for one is none for those before it.
    second = await db.rotate_secret(webhook.id, secrets[2], 7_200.0)
    assert second is not None
    assert second.valid_until - first.valid_until > timedelta(minutes=59)
    assert await signing(db) == [secrets[2], secrets[1], secrets[0]]

    ended = await db.rotate_secret(webhook.id, secrets[3], 0.0)
    assert ended is not None
    assert ended.is_done
    assert await signing(db) == [secrets[3]]


async def test_an_old_secret_ends_with_its_time(db: DBInterface) -> None:
    old, new = new_secret(), new_secret()
    webhook = await db.insert_webhook("https://hooks.example/x", [*WebhookEvent], old)
    await db.rotate_secret(webhook.id, new, 0.2)

    async def is_over() -> bool:
        return await signing(db) == [new]

    await eventually(is_over, "the end of the old secret")


async def test_no_more_old_secrets_are_kept_than_fit_into_a_header(db: DBInterface) -> None:
    webhook = await endpoint(db)
    for _ in range(MAX_OLD_SECRETS):
        rotation = await db.rotate_secret(webhook.id, new_secret(), 60.0)
        assert rotation is not None
        assert rotation.is_done
    before = await signing(db)
    assert len(before) == 1 + MAX_OLD_SECRETS

    refused = await db.rotate_secret(webhook.id, new_secret(), 60.0)

    assert refused is not None
    assert not refused.is_done
    assert await signing(db) == before


async def test_of_rotations_at_once_no_secret_is_lost(store: Store) -> None:
    adapters = [store.connect() for _ in range(3)]
    first, *secrets = [new_secret() for _ in range(4)]
    webhook = await adapters[0].insert_webhook("https://hooks.example/x", [*WebhookEvent], first)

    await asyncio.gather(
        *(
            db.rotate_secret(webhook.id, secret, 60.0)
            for db, secret in zip(adapters, secrets, strict=True)
        )
    )

    assert sorted(await signing(adapters[0])) == sorted([first, *secrets])


@pytest.mark.parametrize("webhook_id", [new_id(), "none"])
async def test_an_unknown_endpoint_gets_no_secret(db: DBInterface, webhook_id: str) -> None:
    assert await db.rotate_secret(webhook_id, new_secret(), 60.0) is None


async def test_a_try_that_nobody_wrote_about_is_due_again_under_the_same_id(
    db: DBInterface,
) -> None:
    webhook = await endpoint(db)
    await complete(db, await claimed(db))
    [first] = await db.claim_deliveries(9, 9, {}, 0.0)
    [second] = await db.claim_deliveries(9, 9, {}, 60.0)

    assert (second.id, second.attempt, second.body) == (first.id, 2, first.body)
    assert not await db.end_try(first, DELIVERED)  # too late, the second one is under way
    assert await db.end_try(second, LATER)
    delivery = await only(db, webhook)
    assert (delivery.status, delivery.last_error) == ("pending", "answered 500")
    assert await db.claim_deliveries(9, 9, {}, 60.0) == []


async def test_a_try_that_was_broken_off_does_not_count(db: DBInterface) -> None:
    webhook = await endpoint(db)
    await complete(db, await claimed(db))
    [first] = await db.claim_deliveries(9, 9, {}, 60.0)
    await db.give_back_try(first)
    [again] = await db.claim_deliveries(9, 9, {}, 0.0)
    assert (again.id, again.attempt) == (first.id, 1)
    [second] = await db.claim_deliveries(9, 9, {}, 60.0)
    await db.give_back_try(again)  # too late: the second try is under way
    assert (await only(db, webhook)).attempt == second.attempt == 2
    assert await db.end_try(second, DELIVERED)
    await db.give_back_try(second)
    assert (await only(db, webhook)).status == "delivered"


async def test_one_endpoint_cannot_take_every_turn(db: DBInterface) -> None:
    first = await endpoint(db, WebhookEvent.COMPLETED)
    second = await endpoint(db, WebhookEvent.FAILED)
    for _ in range(4):
        await complete(db, await claimed(db))
    failed = await claimed(db)
    await db.finish_job(failed.claim, decide(RAISED, failed))

    due = await db.claim_deliveries(10, 2, {}, 60.0)
    assert sorted(d.webhook_id for d in due) == sorted([first.id, first.id, second.id])
    assert await db.claim_deliveries(10, 2, {first.id: 2}, 60.0) == []
    assert await db.claim_deliveries(10, 2, {first.id: 9, second.id: 1}, 60.0) == []
    assert len(await db.claim_deliveries(10, 2, {first.id: 1}, 60.0)) == 1
    assert len(await db.claim_deliveries(1, 2, {}, 60.0)) == 1


async def test_the_first_of_every_endpoint_goes_before_the_second_of_any(db: DBInterface) -> None:
    old = await endpoint(db, WebhookEvent.COMPLETED)
    new = await endpoint(db, WebhookEvent.FAILED)
    for _ in range(4):
        await complete(db, await claimed(db))
    for _ in range(2):
        failed = await claimed(db)
        await db.finish_job(failed.claim, decide(RAISED, failed))

    [first] = await db.claim_deliveries(1, 5, {old.id: 1}, 60.0)
    assert first.webhook_id == new.id
    due = await db.claim_deliveries(2, 5, {}, 60.0)
    assert sorted(d.webhook_id for d in due) == sorted([old.id, new.id])
    assert [d.webhook_id for d in await db.claim_deliveries(9, 5, {}, 60.0)] == [old.id] * 3


async def test_an_endpoint_that_is_switched_off_is_told_nothing_and_gives_up_the_rest(
    db: DBInterface,
) -> None:
    webhook = await endpoint(db)
    await complete(db, await claimed(db))

    assert await db.disable_webhook(webhook.id, "gone")

    await complete(db, await claimed(db))
    delivery = await only(db, webhook)
    assert (delivery.status, delivery.last_error) == ("failed", "gone")
    assert await db.claim_deliveries(9, 9, {}, 60.0) == []
    assert await db.replay_delivery(delivery.id) is Replay.SWITCHED_OFF
    assert (await only(db, webhook)).status == "failed"
    known = await db.get_webhook(webhook.id)
    assert known is not None
    assert (known.is_active, known.disabled_reason) == (False, "gone")
    assert await db.enable_webhook(webhook.id)
    assert await db.replay_delivery(delivery.id) is Replay.REPLAYED
    assert [due.id for due in await db.claim_deliveries(9, 9, {}, 60.0)] == [delivery.id]
    await complete(db, await claimed(db))
    assert len(await db.claim_deliveries(9, 9, {}, 60.0)) == 1


@pytest.mark.parametrize("ended", [DELIVERED, TryEnded(DeliveryStatus.FAILED, 0.0, 500, "no")])
async def test_what_has_ended_can_be_replayed_under_its_id(
    db: DBInterface, ended: TryEnded
) -> None:
    await endpoint(db)
    await complete(db, await claimed(db))
    [due] = await db.claim_deliveries(9, 9, {}, 60.0)
    assert await db.replay_delivery(due.id) is Replay.PENDING
    await db.end_try(due, ended)

    assert await db.replay_delivery(due.id) is Replay.REPLAYED

    [again] = await db.claim_deliveries(9, 9, {}, 60.0)
    assert (again.id, again.attempt) == (due.id, 1)
    assert await db.replay_delivery(new_id()) is None
    assert await db.replay_delivery("no id") is None


async def test_deliveries_are_paged_and_go_with_their_endpoint(db: DBInterface) -> None:
    webhook = await endpoint(db)
    other = await endpoint(db)
    for _ in range(3):
        await complete(db, await claimed(db))
    every = await db.list_deliveries(webhook.id, 10)

    assert await db.list_deliveries(webhook.id, 2) == every[:2]
    place = (every[1].created_at, every[1].id)
    assert await db.list_deliveries(webhook.id, 2, place) == every[2:]
    # Also when that one has gone.
    await db.delete_job(every[1].job_id)
    assert await db.list_deliveries(webhook.id, 2, place) == every[2:]
    assert await db.delete_webhook(webhook.id)
    assert not await db.delete_webhook(webhook.id)
    assert await db.list_deliveries(webhook.id, 10) == []
    assert len(await db.list_deliveries(other.id, 10)) == 2
    assert [known.id for known in await db.list_webhooks()] == [other.id]
