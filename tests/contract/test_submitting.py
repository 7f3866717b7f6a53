"""Idempotency keys and batches: once, all or none, whoever else submits at the same time."""

import asyncio
from typing import Any

import pytest
from contract.steps import claimed, complete, keyed, new_job, new_node
from contract.stores import COUNTED_WAKE_UPS, Store

from app.db.ids import new_id
from app.db.interface import DBInterface
from app.domain.errors import (
    BatchNotFoundError,
    IdempotencyKeyReusedError,
    InvalidJsonError,
    TooLargeError,
)
from app.domain.jobs import MAX_PAYLOAD_BYTES, JobOptions, JobStatus
from app.domain.submissions import (
    MAX_BATCH_ROWS,
    Batch,
    BatchReceipt,
    Submission,
    fingerprint,
)


async def pending(db: DBInterface) -> int:
    """How many jobs a scheduler finds."""
    return len(await db.claim_pending_jobs(await new_node(db), 2_000))


# -- keys -------------------------------------------------------------------------------------


async def test_a_key_makes_one_job(db: DBInterface) -> None:
    first = await db.insert_pending_job({"a": 1}, keyed(payload={"a": 1}))
    again = await db.insert_pending_job({"a": 1}, keyed(payload={"a": 1}))

    assert first == again
    assert await pending(db) == 1


async def test_the_caller_s_own_id_tells_whether_the_job_is_new(db: DBInterface) -> None:
    first, second = keyed(), keyed()

    assert await db.insert_pending_job({}, first) == first.job_id
    assert await db.insert_pending_job({}, first) == first.job_id
    assert await db.insert_pending_job({}, second) == first.job_id
    unkeyed = JobOptions(job_id=new_id())
    assert await db.insert_pending_job({}, unkeyed) == unkeyed.job_id


async def test_a_key_is_refused_for_other_content_and_nothing_is_stored(db: DBInterface) -> None:
    first = await db.insert_pending_job({"a": 1}, keyed(payload={"a": 1}))

    for payload, priority in (({"a": 2}, 0), ({"a": 1}, 1)):
        with pytest.raises(IdempotencyKeyReusedError) as caught:
            await db.insert_pending_job(payload, keyed(payload=payload, priority=priority))
        assert (caught.value.key, caught.value.job_id) == ("key", first)

    assert await pending(db) == 1


async def test_a_key_belongs_to_its_submitter(db: DBInterface) -> None:
    ids = [
        await db.insert_pending_job({"by": by}, keyed(payload={"by": by}, submitted_by=by))
        for by in (None, "a", "b", "a")
    ]

    assert len(set(ids)) == 3
    assert ids[1] == ids[3]


async def test_what_a_key_has_made_is_found_until_it_goes(db: DBInterface) -> None:
    options = keyed(submitted_by="a")
    assert options.fingerprint is not None
    job = await db.insert_pending_job({}, options)

    assert await db.find_submission("a", "key", options.fingerprint) == job
    assert await db.find_submission("b", "key", options.fingerprint) is None
    assert await db.find_submission("a", "other", options.fingerprint) is None
    with pytest.raises(IdempotencyKeyReusedError):
        await db.find_submission("a", "key", b"other")
    await db.cancel_job(job)
    await db.delete_job(job)
    assert await db.find_submission("a", "key", options.fingerprint) is None


async def test_a_key_lives_as_long_as_its_job_whatever_becomes_of_it(db: DBInterface) -> None:
    job = await claimed(db, idempotency_key="key", fingerprint=fingerprint({}, JobOptions()))
    await complete(db, job)

    assert await db.insert_pending_job({}, keyed()) == job.id
    assert (await db.get_job(job.id)).status is JobStatus.COMPLETED


async def test_a_key_without_a_fingerprint_finds_its_job(db: DBInterface) -> None:
    first = await new_job(db, {"a": 1}, idempotency_key="key", fingerprint=b"x")

    assert await new_job(db, {"a": 2}, idempotency_key="key") == first


async def test_one_job_comes_of_a_key_that_many_use_at_once(store: Store) -> None:
    adapters = [store.connect() for _ in range(2)]

    ids = await asyncio.gather(
        *(db.insert_pending_job({}, keyed()) for _ in range(50) for db in adapters)
    )

    assert len(set(ids)) == 1
    assert await pending(adapters[0]) == 1


async def test_one_of_two_contents_wins_a_key_that_many_use_at_once(store: Store) -> None:
    adapters = [store.connect() for _ in range(2)]

    answers = await asyncio.gather(
        *(
            db.insert_pending_job({"n": n}, keyed(payload={"n": n}))
            for _ in range(20)
            for n in range(2)
            for db in adapters
        ),
        return_exceptions=True,
    )

    stored = [answer for answer in answers if isinstance(answer, str)]
    refused = [answer for answer in answers if isinstance(answer, IdempotencyKeyReusedError)]
    assert (len(stored), len(refused), len(set(stored))) == (40, 40, 1)
    assert {error.job_id for error in refused} == set(stored)
    assert await pending(adapters[0]) == 1


async def test_submitters_with_the_same_keys_in_any_order_do_not_block_each_other(
    store: Store,
) -> None:
    adapters = [store.connect() for _ in range(3)]
    names = [f"key-{n}" for n in range(40)]
    orders = [names, names[::-1], names[20:] + names[:20]]

    answers = await asyncio.gather(
        *(
            db.insert_pending_job({}, keyed(name))
            for db, order in zip(adapters, orders, strict=True)
            for name in order
        ),
        *(
            db.insert_pending_jobs([Submission("{}", keyed(name)) for name in order])
            for db, order in zip(adapters, orders, strict=True)
        ),
    )

    assert len({answer for answer in answers if isinstance(answer, str)}) == 40
    assert await pending(adapters[0]) == 40


# -- batches ----------------------------------------------------------------------------------


def rows(count: int, **options: Any) -> list[Submission]:
    return [Submission(f'{{"n":{n}}}', JobOptions(**options)) for n in range(count)]


async def test_a_batch_stores_its_jobs_in_their_order(db: DBInterface) -> None:
    receipt = await db.insert_pending_jobs(rows(MAX_BATCH_ROWS, tags=("x", "y"), priority=3))

    assert len(receipt.job_ids) == MAX_BATCH_ROWS
    assert list(receipt.job_ids) == sorted(set(receipt.job_ids))
    assert receipt.replayed == frozenset()
    claims = await db.claim_pending_jobs(await new_node(db), 2_000)
    assert [job.id for job in claims] == list(receipt.job_ids)
    assert [job.payload for job in claims] == [f'{{"n": {n}}}' for n in range(MAX_BATCH_ROWS)]
    job = await db.get_job(receipt.job_ids[500])
    assert (job.tags, job.priority, job.pipeline) == (("x", "y"), 3, "by-default")


async def test_rows_of_a_batch_may_differ_in_everything(db: DBInterface) -> None:
    options = [
        JobOptions(),
        JobOptions(pipeline="p", queue="q", tags=("b", "a", ""), metadata={"m": [1]}),
        JobOptions(delay_seconds=60.0, max_attempts=3),
        JobOptions(idempotency_key="k", submitted_by="s"),
    ]

    receipt = await db.insert_pending_jobs([Submission('{"é": 1}', one) for one in options])

    plain, full, late, keyed_one = [await db.get_job(job_id) for job_id in receipt.job_ids]
    assert (plain.pipeline, plain.tags, plain.max_attempts) == ("by-default", (), 1)
    assert (full.pipeline, full.queue) == ("p", "q")
    assert (full.tags, full.metadata) == (("b", "a", ""), {"m": [1]})
    assert (late.run_at - late.created_at).total_seconds() == 60
    assert late.max_attempts == 3
    assert keyed_one.created_at == plain.created_at


async def test_large_rows_fit_together(db: DBInterface) -> None:
    text = '{"a":"' + "x" * (MAX_PAYLOAD_BYTES - 8) + '"}'

    receipt = await db.insert_pending_jobs([*rows(1), Submission(text), Submission(text)])

    assert (await db.get_batch(receipt.id or "")).total == 3


async def test_nothing_of_a_batch_is_stored_when_a_row_cannot_be(db: DBInterface) -> None:
    good = rows(3)
    large = Submission('"' + "x" * MAX_PAYLOAD_BYTES + '"')
    many = Submission('"' + "x" * (MAX_PAYLOAD_BYTES - 100) + '"')

    with pytest.raises(InvalidJsonError) as caught:
        await db.insert_pending_jobs([*good, Submission("{}", JobOptions(tags=("a", "\x00")))])
    assert caught.value.pointer == "/3/tags/1"
    with pytest.raises(TooLargeError, match="payload of submission 3"):
        await db.insert_pending_jobs([*good, large])
    with pytest.raises(TooLargeError, match="payloads of a batch"):
        await db.insert_pending_jobs([many] * 4)
    for count in (0, MAX_BATCH_ROWS + 1):
        with pytest.raises(ValueError, match="1 to 1000"):
            await db.insert_pending_jobs(rows(count))

    assert await pending(db) == 0


async def test_nothing_of_a_batch_is_stored_when_a_key_is_refused(db: DBInterface) -> None:
    await db.insert_pending_job({"a": 1}, keyed("taken", {"a": 1}))

    # Sorted, the refused key is not the last one.
    with pytest.raises(IdempotencyKeyReusedError) as caught:
        await db.insert_pending_jobs(
            [*rows(300), Submission("{}", keyed("z")), Submission("{}", keyed("taken"))]
        )

    assert (caught.value.key, caught.value.index) == ("taken", 301)
    assert await pending(db) == 1
    assert await db.insert_pending_job({}, mine := keyed("z")) == mine.job_id


async def test_known_rows_of_a_batch_stay_what_they_are(db: DBInterface) -> None:
    known = await db.insert_pending_job({}, keyed("1"))

    receipt = await db.insert_pending_jobs([Submission("{}", keyed(str(n))) for n in range(3)])

    assert receipt.job_ids[1] == known
    assert receipt.replayed == {1}
    assert (await db.get_batch(receipt.id or "")).total == 2
    assert await pending(db) == 3


async def test_a_batch_that_comes_again_is_the_same_batch(db: DBInterface) -> None:
    async def submit() -> Any:
        return await db.insert_pending_jobs([Submission("{}", keyed(str(n))) for n in range(400)])

    first, *others = await asyncio.gather(*(submit() for _ in range(4)))

    for other in others:
        assert (other.id, other.job_ids) == (first.id, first.job_ids)
    new = [one for one in (first, *others) if not one.replayed]
    assert len(new) == 1
    assert (await db.get_batch(first.id)).total == 400
    assert await pending(db) == 400


async def test_known_rows_of_no_batch_make_none(db: DBInterface) -> None:
    known = await db.insert_pending_job({}, keyed("a"))

    receipt = await db.insert_pending_jobs([Submission("{}", keyed("a"))])

    assert receipt == BatchReceipt(None, (known,), frozenset({0}))


async def test_a_key_twice_in_one_batch_makes_one_job(db: DBInterface) -> None:
    receipt = await db.insert_pending_jobs(
        [Submission("{}", keyed(name)) for name in ("a", "b", "a")]
    )

    assert receipt.job_ids[0] == receipt.job_ids[2] != receipt.job_ids[1]
    assert len(receipt.replayed) == 1
    assert await pending(db) == 2
    with pytest.raises(IdempotencyKeyReusedError):
        await db.insert_pending_jobs(
            [Submission("{}", keyed("c")), Submission("{}", keyed("c", {"other": 1}))]
        )
    assert await pending(db) == 0


async def test_a_batch_tells_where_its_jobs_are(db: DBInterface) -> None:
    receipt = await db.insert_pending_jobs(rows(4))
    assert receipt.id is not None
    await db.insert_pending_jobs(rows(2, delay_seconds=60.0))

    first = await db.get_batch(receipt.id)
    created_at = (await db.get_job(receipt.job_ids[0])).created_at
    assert first == Batch(receipt.id, 4, 4, 0, 0, 0, 0, created_at)
    assert not first.is_done

    one, two = await db.claim_pending_jobs(await new_node(db), 2)
    await complete(db, one)
    await db.cancel_job(receipt.job_ids[3])
    assert await db.get_batch(receipt.id) == Batch(receipt.id, 4, 1, 1, 1, 0, 1, created_at)

    await complete(db, two)
    await db.cancel_job(receipt.job_ids[2])
    last = await db.get_batch(receipt.id)
    assert last == Batch(receipt.id, 4, 0, 0, 2, 0, 2, created_at)
    assert last.is_done


@pytest.mark.needs(COUNTED_WAKE_UPS)
async def test_schedulers_are_woken_by_what_is_new_and_due_alone(store: Store) -> None:
    await store.connect(notify=False).insert_pending_job({}, keyed("known"))
    later = [Submission("{}", JobOptions(delay_seconds=60.0))]
    known = [Submission("{}", keyed("known"))]
    for submissions, expected in ((later + known, 0), (rows(1_000), 1), (later + rows(1), 1)):
        db = store.connect()
        async with store.counting_wake_ups() as count:
            await db.insert_pending_jobs(submissions)
            await db.insert_pending_job({}, keyed("known"))
            await db.close()  # returns once its wishes have been sent

            assert await count() == expected


async def test_an_unknown_batch_is_not_found(db: DBInterface) -> None:
    for batch_id in (new_id(), "", "x", "\x00", "\ud800"):
        with pytest.raises(BatchNotFoundError):
            await db.get_batch(batch_id)
