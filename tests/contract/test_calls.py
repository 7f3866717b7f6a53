"""Paid calls: each answer is kept once for every job, and counted for whoever paid."""

import asyncio
import json
from dataclasses import replace

import pytest
from contract.steps import CALL, claimed, given_back, new_job, new_node
from contract.stores import Store

from app.db.ids import new_id
from app.db.interface import DBInterface
from app.domain.errors import LeaseLostError, TooLargeError
from app.domain.sharing import MAX_CALL_ANSWER_BYTES, CallUsage, FailedCalls

PAID = CallUsage(CALL.stage, CALL.model, 1, 0, 120, 30, 0.0015)


async def test_nothing_is_kept_under_a_key_that_nobody_used(db: DBInterface) -> None:
    assert await db.load_call(CALL.key) is None
    assert await db.list_usage(await new_job(db)) == []
    assert await db.list_usage(new_id()) == []
    assert await db.list_usage("no id") == []


async def test_an_answer_serves_every_job_and_outlives_the_one_that_paid(
    store: Store, db: DBInterface
) -> None:
    job = await claimed(db)
    await db.save_call(job.claim, CALL)
    await given_back(db, job)

    assert json.loads(await store.connect().load_call(CALL.key) or "") == json.loads(CALL.answer)
    assert await db.list_usage(job.id) == [PAID]


async def test_a_repetition_neither_counts_again_nor_replaces_the_answer(db: DBInterface) -> None:
    job = await claimed(db)
    await db.save_call(job.claim, CALL)

    await db.save_call(job.claim, replace(CALL, answer='"another"', prompt_tokens=999))

    assert json.loads(await db.load_call(CALL.key) or "") == json.loads(CALL.answer)
    assert await db.list_usage(job.id) == [PAID]


async def test_repetitions_at_the_same_time_count_once(store: Store, db: DBInterface) -> None:
    job = await claimed(db)
    others = [store.connect() for _ in range(3)]

    async with store.holding(job.id):
        saving = [asyncio.ensure_future(other.save_call(job.claim, CALL)) for other in others]
        await store.until_blocked(3)
    await asyncio.gather(*saving)

    assert await db.list_usage(job.id) == [PAID]


async def test_two_jobs_that_made_the_same_call_at_once_have_both_paid(
    store: Store, db: DBInterface
) -> None:
    node = await new_node(db)
    one, two = await claimed(db, node), await claimed(db, node)
    other = store.connect()

    async with store.holding(one.id):
        first = asyncio.ensure_future(db.save_call(one.claim, CALL))
        await store.until_blocked(1)
        await other.save_call(two.claim, replace(CALL, answer='"theirs"'))
    await first

    assert await db.load_call(CALL.key) == '"theirs"'
    assert await db.list_usage(one.id) == [PAID]
    assert await db.list_usage(two.id) == [PAID]


async def test_a_later_attempt_that_makes_the_call_again_pays_again(db: DBInterface) -> None:
    node = await new_node(db)
    job = await claimed(db, node)
    await db.save_call(job.claim, CALL)
    await given_back(db, job)
    again = await db.claim_next_pending_job(node)
    assert again is not None

    await db.save_call(again.claim, CALL)

    assert await db.list_usage(job.id) == [
        replace(PAID, calls=2, prompt_tokens=240, completion_tokens=60, cost=0.003)
    ]


async def test_an_answer_is_kept_although_its_claim_is_lost_and_counts_for_nobody(
    db: DBInterface,
) -> None:
    job = await claimed(db)
    await given_back(db, job)

    with pytest.raises(LeaseLostError):
        await db.save_call(job.claim, CALL)

    assert json.loads(await db.load_call(CALL.key) or "") == json.loads(CALL.answer)
    assert await db.list_usage(job.id) == []


async def test_requests_without_an_answer_count_for_the_job_in_all_its_attempts(
    db: DBInterface,
) -> None:
    node = await new_node(db)
    job = await claimed(db, node)
    await db.save_call(job.claim, CALL)
    await db.count_cached_calls(job.claim, CALL.stage, CALL.model, 7)

    # Totals that only grow: each figure's largest, however late an older one comes.
    for total in (FailedCalls(1, 50), FailedCalls(3, 150, 40, 0.5), FailedCalls(2, 100, 40, 0.25)):
        await db.count_failed_calls(job.claim, CALL.stage, CALL.model, total)
    await given_back(db, job)
    again = await db.claim_next_pending_job(node)
    assert again is not None
    await db.count_failed_calls(again.claim, CALL.stage, CALL.model, FailedCalls(1, 10, 0, 0.25))

    assert await db.list_usage(job.id) == [CallUsage(CALL.stage, CALL.model, 5, 7, 280, 70, 0.7515)]


async def test_usage_is_summed_by_stage_and_model_in_the_order_of_their_first_calls(
    db: DBInterface,
) -> None:
    job = await claimed(db)
    names = [("name", "small"), ("assign", "small"), ("assign", "large"), ("name", "small")]
    for number, (stage, model) in enumerate(names):
        call = replace(CALL, key=f"{number:064x}", stage=stage, model=model)
        await db.save_call(job.claim, call)

    usage = await db.list_usage(job.id)

    assert [(u.stage, u.model, u.calls) for u in usage] == [
        ("name", "small", 2),
        ("assign", "small", 1),
        ("assign", "large", 1),
    ]


async def test_cached_calls_are_totals_that_only_grow(db: DBInterface) -> None:
    job = await claimed(db)
    await db.save_call(job.claim, CALL)

    for total in (1, 3, 3, 2):
        await db.count_cached_calls(job.claim, CALL.stage, CALL.model, total)
    await db.count_cached_calls(job.claim, "other", CALL.model, 5)

    assert await db.list_usage(job.id) == [
        replace(PAID, cached_calls=3),
        CallUsage("other", CALL.model, 0, 5, 0, 0, 0.0),
    ]


async def test_cached_calls_of_two_attempts_add_up(db: DBInterface) -> None:
    node = await new_node(db)
    job = await claimed(db, node)
    await db.count_cached_calls(job.claim, "name", "small", 4)
    await given_back(db, job)
    again = await db.claim_next_pending_job(node)
    assert again is not None
    await db.count_cached_calls(again.claim, "name", "small", 2)

    assert await db.list_usage(job.id) == [CallUsage("name", "small", 0, 6, 0, 0, 0.0)]


async def test_an_answer_above_the_bound_is_refused(db: DBInterface) -> None:
    job = await claimed(db)
    fits = replace(CALL, answer='"' + "x" * (MAX_CALL_ANSWER_BYTES - 2) + '"')

    with pytest.raises(TooLargeError):
        await db.save_call(job.claim, replace(fits, answer=fits.answer + " "))
    assert await db.list_usage(job.id) == []

    await db.save_call(job.claim, fits)
    assert await db.load_call(CALL.key) == fits.answer
