"""Submitting and reading: what goes in comes back, once or not at all."""

import asyncio
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from contract.steps import claimed, complete, new_job, new_node
from contract.stores import Store

from app.db.ids import new_id
from app.db.interface import DBInterface
from app.domain.errors import InvalidJsonError, JobNotFoundError, TooLargeError
from app.domain.jobs import (
    MAX_JSON_DEPTH,
    MAX_METADATA_BYTES,
    MAX_PAYLOAD_BYTES,
    Job,
    JobOptions,
    JobStatus,
    Limits,
)


async def payload_of(db: DBInterface, job_id: str) -> Any:
    """The stored payload, as the worker of the next claim reads it."""
    job = await db.claim_next_pending_job(await new_node(db))
    assert job is not None
    assert job.id == job_id
    return json.loads(await db.load_payload(job.claim))


async def test_a_payload_alone_suffices(db: DBInterface) -> None:
    job_id = await db.insert_pending_job({"a": 1})

    job = await db.get_job(job_id)
    assert job == Job(
        id=job_id,
        status=JobStatus.PENDING,
        pipeline="by-default",
        queue="default",
        priority=0,
        attempt=0,
        max_attempts=1,
        claim_no=0,
        node_losses=0,
        node_id=None,
        pid=None,
        limits=Limits(),
        tags=(),
        metadata={},
        created_at=job.created_at,
        run_at=job.run_at,
        started_at=None,
        finished_at=None,
        cancel_requested_at=None,
        progress=None,
        error=None,
        cause=None,
        version=job.version,
        last_event_id=job.last_event_id,
    )
    assert str(UUID(job_id)) == job_id
    assert job.created_at == job.run_at
    assert job.created_at.utcoffset() == timedelta(0)
    assert await db.get_result(job_id) is None


async def test_every_option_is_kept(db: DBInterface) -> None:
    run_at = datetime(2040, 1, 2, 3, 4, 5, 678_901, timezone(timedelta(hours=5, minutes=30)))
    options = JobOptions(
        pipeline="other",
        queue="nightly",
        priority=-32_768,
        run_at=run_at,
        max_attempts=7,
        limits=Limits(1.5, 2.5, 3.5, 2**40),
        tags=("x", "", "ä,b"),
        metadata={"n": 2**64, "deep": {"ü": [None, True, 0.1]}},
        submitted_by="somebody",
    )

    job = await db.get_job(await db.insert_pending_job({}, options))

    assert (job.pipeline, job.queue, job.priority) == ("other", "nightly", -32_768)
    assert job.run_at == run_at
    assert job.run_at.tzinfo is not None
    assert (job.max_attempts, job.limits) == (7, Limits(1.5, 2.5, 3.5, 2**40))
    assert (job.tags, job.metadata) == (options.tags, options.metadata)


@pytest.mark.parametrize("run_at", [None, datetime.now(UTC)], ids=["now", "run_at"])
async def test_a_delay_counts_from_the_given_start_on_the_store_s_clock(
    db: DBInterface, run_at: datetime | None
) -> None:
    job = await db.get_job(await new_job(db, run_at=run_at, delay_seconds=3_600.0))

    assert job.run_at == (run_at or job.created_at) + timedelta(hours=1)


async def test_ids_sort_by_the_time_of_their_making(db: DBInterface) -> None:
    ids = [await new_job(db) for _ in range(20)]

    assert ids == sorted(set(ids))


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"": None, "a": [[], {}, True]},
        {"n": [2**53 + 1, 2**64, -(2**200), 10**999, 0.1, 1.0, -1.5e21, 5e-324]},
        {"text": 'naïve 日本 🧵 \u2028 \x01\x1f\x7f \\ " / \\u0041', "ключ": "x"},
        {"big": "x" * 300_000},
        {"many": [{"i": i} for i in range(20_000)]},
    ],
    ids=["empty", "small", "numbers", "text", "big", "many"],
)
async def test_a_payload_comes_back_unchanged(db: DBInterface, payload: dict[str, Any]) -> None:
    assert await payload_of(db, await db.insert_pending_job(payload)) == payload


async def test_a_payload_may_come_as_its_text(db: DBInterface) -> None:
    assert await payload_of(db, await db.insert_pending_job('{"n": 18446744073709551617}')) == {
        "n": 2**64 + 1
    }


async def test_the_deepest_payload_is_kept(db: DBInterface) -> None:
    payload: Any = {}
    for _ in range(MAX_JSON_DEPTH - 1):
        payload = {"k": payload}

    assert await payload_of(db, await db.insert_pending_job(payload)) == payload


async def test_nothing_is_stored_when_the_payload_could_not_come_back(db: DBInterface) -> None:
    bad: list[tuple[dict[Any, Any], str]] = [
        ({"a": "\x00"}, "/a"),
        ({"a": ["\ud800"]}, "/a/0"),
        ({"\x00": 1}, ""),
        ({"a": float("nan")}, "/a"),
        ({"a": float("-inf")}, "/a"),
        ({"a": 10**2_000}, "/a"),
        ({"a": {1: 2}}, "/a"),
        ({"a": object()}, "/a"),
    ]
    for payload, pointer in bad:
        with pytest.raises(InvalidJsonError) as caught:
            await db.insert_pending_job(payload)
        assert caught.value.pointer == pointer

    assert await db.claim_next_pending_job(await new_node(db)) is None


@pytest.mark.parametrize("bad", ["\x00", "\ud800"], ids=ascii)
async def test_nothing_is_stored_when_an_option_could_not_come_back(
    db: DBInterface, bad: str
) -> None:
    for options, pointer in (
        (JobOptions(metadata={"a": [bad]}), "/metadata/a/0"),
        (JobOptions(tags=("fine", bad)), "/tags/1"),
        (JobOptions(queue=bad), "/queue"),
        (JobOptions(pipeline=bad), "/pipeline"),
        (JobOptions(submitted_by=bad), "/submitted_by"),
    ):
        with pytest.raises(InvalidJsonError) as caught:
            await db.insert_pending_job({}, options)
        assert caught.value.pointer == pointer

    assert await db.claim_next_pending_job(await new_node(db)) is None


async def test_nothing_is_stored_when_the_input_is_too_large(db: DBInterface) -> None:
    for payload in ({"a": "x" * MAX_PAYLOAD_BYTES}, json.dumps({"a": "é" * MAX_PAYLOAD_BYTES})):
        with pytest.raises(TooLargeError, match="payload"):
            await db.insert_pending_job(payload)
    with pytest.raises(TooLargeError, match="metadata"):
        await db.insert_pending_job({}, JobOptions(metadata={"a": "x" * MAX_METADATA_BYTES}))

    assert await db.claim_next_pending_job(await new_node(db)) is None


async def test_an_unknown_id_is_not_found(db: DBInterface, subtests: pytest.Subtests) -> None:
    for job_id in (new_id(), "", "x", "0", "a" * 300, "\x00", "\ud800", "'; drop"):
        with subtests.test(ascii(job_id)):
            for read in (db.get_job, db.get_result):
                with pytest.raises(JobNotFoundError) as caught:
                    await read(job_id)
                assert caught.value.job_id == job_id
            assert await db.list_milestones(job_id) == []
            assert await db.list_attempts(job_id) == []
            assert await db.list_logs(job_id) == []
            assert await db.load_checkpoint(job_id, "stage") is None


async def test_many_submitters_at_once_get_a_job_each(store: Store) -> None:
    adapters = [store.connect() for _ in range(4)]

    ids = await asyncio.gather(*(new_job(db, {"n": n}) for n in range(50) for db in adapters))

    assert len(set(ids)) == 200
    for job_id in ids[:: len(ids) // 10]:
        assert (await adapters[0].get_job(job_id)).status is JobStatus.PENDING


async def test_a_second_close_does_nothing_and_the_next_call_connects_again(store: Store) -> None:
    db = store.connect()
    await db.close()
    await db.open()
    job_id = await new_job(db)
    await db.close()
    await db.close()

    assert (await db.get_job(job_id)).id == job_id
    await db.ping()


async def test_a_finished_job_tells_its_end(db: DBInterface) -> None:
    job = await claimed(db)
    running = await db.get_job(job.id)
    assert (running.status, running.attempt) == (JobStatus.RUNNING, 1)
    assert running.started_at == job.claimed_at
    assert running.finished_at is None

    await complete(db, job)

    ended = await db.get_job(job.id)
    assert ended.status is JobStatus.COMPLETED
    assert ended.finished_at is not None
    assert ended.started_at is not None
    assert ended.finished_at >= ended.started_at >= ended.created_at
