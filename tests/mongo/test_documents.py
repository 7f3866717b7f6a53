"""What the contract cannot see of MongoDB: where things lie, which index serves what, cancels."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from contract.steps import claimed, complete, new_job, new_node
from support import mongo

from app.db.mongo import claiming, connections
from app.db.mongo.adapter import MongoJobsDB
from app.db.mongo.connections import check_cancelled, noticing_cancels
from app.db.mongo.documents import MAX_HELD_EVENTS
from app.db.mongo.texts import PIECE_BYTES
from app.domain.errors import DatabaseUnavailableError, TooLargeError
from app.domain.following import FollowCursor, LogCursor
from app.domain.jobs import (
    MAX_CHECKPOINT_BYTES,
    ClaimedJob,
    JobOptions,
    JobStatus,
    LogLine,
    Progress,
)
from app.domain.keys import PendingCaps
from app.domain.managing import JobFilter
from app.domain.sharing import FailedCalls, PaidCall
from app.domain.submissions import Submission, part_key

ROWS = 3_000


@pytest.fixture
async def db(mongo_database_url: str) -> AsyncIterator[MongoJobsDB]:
    db = MongoJobsDB(mongo_database_url, default_pipeline="by-default", notify=False)
    yield db
    await db.close()


@pytest.fixture
def every_command(documents: Any) -> Iterator[Any]:
    """What the server's profiler tells of each command."""
    documents.command("profile", 2)
    profile = documents["system.profile"]
    yield lambda: profile.find({"ns": {"$ne": profile.full_name}})
    documents.command("profile", 0)
    documents["system.profile"].drop()


@pytest.fixture
def documents(mongo_database_url: str) -> Iterator[Any]:
    with mongo.client(mongo_database_url) as opened:
        yield opened.get_default_database()


async def test_the_story_of_a_job_stays_whole_when_its_beginning_is_moved(
    db: MongoJobsDB, documents: Any
) -> None:
    job = await claimed(db)
    count = 2 * MAX_HELD_EVENTS + 5
    for n in range(count):
        await db.report_progress(job.claim, Progress(n / count, f"s{n}"), is_milestone=True)

    held = documents["jobs"].find_one({"_id": job.id})["events"]
    assert 0 < len(held) < MAX_HELD_EVENTS
    assert documents["job_events"].count_documents({"job_id": job.id}) == 2
    expected = [f"s{n}" for n in range(count)]
    assert [m.stage for m in await db.list_milestones(job.id)] == expected
    # Pages across the places where it was cut, from every event on.
    story = ["pending", "running", *expected]
    for after in (0, 1, MAX_HELD_EVENTS - 1, MAX_HELD_EVENTS, len(story) - 2, len(story)):
        seen, place = [], after
        while True:
            [news] = await db.list_news([FollowCursor(job.id, place)], 7)
            if not news.events:
                break
            assert len(news.events) <= 7
            seen += [event.stage for event in news.events]
            place = news.events[-1].id
        assert seen == story[after:]

    assert await complete(db, job)
    await db.delete_job(job.id)
    assert documents["job_events"].count_documents({}) == 0


async def test_a_text_of_many_pieces_is_replaced_as_a_whole(
    db: MongoJobsDB, documents: Any
) -> None:
    job = await claimed(db)
    # Nothing that could be packed: 24 bits of a number in six digits.
    digits = "".join(f"{n * 2_654_435_761 % 2**24:06x}" for n in range(3 * PIECE_BYTES // 4))
    large = f'"{digits}"'
    await db.save_checkpoint(job.claim, "s", large)
    assert documents["job_checkpoints"].count_documents({}) > 1
    assert await db.load_checkpoint(job.id, "s") == large

    await db.save_checkpoint(job.claim, "s", '"small"')

    assert documents["job_checkpoints"].count_documents({}) == 1
    assert await db.load_checkpoint(job.id, "s") == '"small"'
    with pytest.raises(TooLargeError):
        await db.save_checkpoint(job.claim, "s", " " * (MAX_CHECKPOINT_BYTES + 1))


async def test_a_claim_reads_no_more_than_it_takes(db: MongoJobsDB, documents: Any) -> None:
    node = await new_node(db)
    job_id = await new_job(db)
    template = documents["jobs"].find_one({"_id": job_id})
    documents["jobs"].insert_many(
        [{**template, "_id": f"{n:036}", "priority": n % 7 - 9} for n in range(ROWS)]
    )
    claimer = await db._claimer(node)
    assert claimer is not None

    def told(due: Any) -> Any:
        found = documents["jobs"].find(claiming.indexed(due), {"_id": 1}, hint=claiming._INDEX)
        stats = found.sort(claiming._ORDER).limit(10).explain()["executionStats"]
        assert "'SORT'" not in str(stats)
        return stats

    stats = told(await db._due(claimer, ["by-default"]))
    assert (stats["nReturned"], stats["totalDocsExamined"]) == (10, 0)
    assert stats["totalKeysExamined"] <= 12

    # What others can run, and what is paused, is passed over without a look at the documents.
    stats = told(await db._due(claimer, ["of another node"]))
    assert (stats["nReturned"], stats["totalDocsExamined"]) == (0, 0)
    await db.pause_queue("default")
    stats = told(await db._due(claimer, ["by-default"]))
    assert (stats["nReturned"], stats["totalDocsExamined"]) == (0, 0)
    await db.resume_queue("default")

    # What is scheduled is not even walked: a step for each priority.
    documents["jobs"].update_many(
        {"_id": {"$ne": job_id}}, {"$set": {"run_at": claimer["now"] + 3_600_000_000}}
    )
    stats = told(await db._due(claimer, ["by-default"]))
    assert (stats["nReturned"], stats["totalDocsExamined"]) == (1, 0)
    assert stats["totalKeysExamined"] <= 20

    claims = await db.claim_pending_jobs(node, 1)
    assert [job.id for job in claims] == [job_id]


# Collections that stay small: places, people and their endpoints.
SMALL = {"queues", "nodes", "api_keys", "webhooks", "schema", "signals"}


async def test_nothing_reads_a_whole_collection_that_grows(
    db: MongoJobsDB, documents: Any, every_command: Any
) -> None:
    batch, first, second = await _write(db)
    await _look(db, batch, first)
    await _remove(db, first, second)

    told = list(every_command())
    assert len(told) > 100
    read_whole = {
        entry["ns"].partition(".")[2]
        for entry in told
        if "COLLSCAN" in entry.get("planSummary", "")
    }
    assert read_whole <= SMALL


async def _write(db: MongoJobsDB) -> tuple[str, ClaimedJob, ClaimedJob]:
    """All that jobs do; a batch, a completed job and another one."""
    node = await new_node(db)
    for n in range(3):
        key = f"k{n}"
        await new_job(db, {}, submitted_by="s", idempotency_key=key, fingerprint=b"f")
    parts = [Submission("{}", JobOptions(idempotency_key=part_key("b", 0)))]
    batch = await db.insert_pending_jobs(parts, key="b")
    assert batch.id is not None
    await db.insert_webhook("http://x", ["job.completed"], "secret")
    [first, second, _] = await db.claim_pending_jobs(node, 3)
    await db.load_payload(first.claim)
    await db.report_progress(first.claim, Progress(0.5, "s"), is_milestone=True)
    await db.append_logs(first.claim, [LogLine(1, 20, "log", "x", datetime.now(UTC))])
    await db.save_checkpoint(first.claim, "s", "1")
    await db.save_call(first.claim, PaidCall("key", "1", "s", "m"))
    await db.count_cached_calls(first.claim, "s", "m", 3)
    await db.count_failed_calls(first.claim, "s", "m", FailedCalls(1))
    assert await db.list_running_jobs(node)
    await db.list_lost_jobs(10)
    await db.count_running_jobs(node)
    assert await complete(db, first)
    await complete(db, second)
    return batch.id, first, second


async def _look(db: MongoJobsDB, batch: str, job: ClaimedJob) -> None:
    await db.get_job(job.id)
    assert await db.list_usage(job.id)
    await db.list_milestones(job.id)
    await db.list_attempts(job.id)
    await db.list_logs(job.id)
    await db.list_news([FollowCursor(job.id, 0)], 10)
    await db.list_lines([LogCursor(job.id, 0, 0)], 10)
    await db.find_log_tail(job.id, 1)
    await db.list_checkpoints(job.id, "", 10)
    await db.list_checkpoint_stages(job.id)
    await db.get_result(job.id)
    await db.get_result_state(job.id)
    await db.load_call("key")
    await db.find_submission("s", "k0", b"f")
    await db.get_batch(batch)
    await db.count_pending("s")
    await db.count_keys_used("s", ["k0"])
    await db.count_datasets("s")
    await db.list_jobs(JobFilter(), limit=10)
    await db.list_jobs(JobFilter(statuses=(JobStatus.FAILED,)), limit=10)
    await db.list_queues(10)
    [delivery, _] = await db.claim_deliveries(10, 5, {}, 30.0)
    await db.list_deliveries(delivery.webhook_id, 10)


async def _remove(db: MongoJobsDB, first: ClaimedJob, second: ClaimedJob) -> None:
    await db.retry_job(second.id, PendingCaps(100, 10_000))
    await db.cancel_job(second.id)
    await db.delete_job(first.id)
    dataset = await db.insert_dataset("n", ["a"], [["x"]], sha256="0" * 64, detected={})
    await db.list_datasets(10)
    await db.list_datasets_of_file("0" * 64)
    await db.list_dataset_rows(dataset.id, [0])
    await db.list_dataset_json(dataset.id, 10)
    await db.delete_dataset(dataset.id)
    await db.prune_jobs(JobStatus.CANCELLED, 0.0, 10)
    await db.prune_datasets(0.0, 10)
    await db.prune_calls(0.0, 10)
    await db.prune_nodes(0.0, 10)
    await db.prune_tombstones(0.0, 10)


async def test_a_cancel_that_the_driver_has_swallowed_is_noticed() -> None:
    reached: list[str] = []

    async def swallowing() -> None:
        with noticing_cancels():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                reached.append("swallowed")
            check_cancelled()
            reached.append("went on")

    task = asyncio.ensure_future(swallowing())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reached == ["swallowed"]


async def test_a_cancel_that_the_driver_has_swallowed_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "CANCEL_AGAIN_SECONDS", 0.01)

    async def swallowing() -> None:
        with noticing_cancels():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            await asyncio.sleep(60)

    task = asyncio.ensure_future(swallowing())
    await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await task
    # One wish is one, however often it was told.
    assert task.cancelling() == 1


async def test_a_time_out_that_the_driver_has_swallowed_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "CANCEL_AGAIN_SECONDS", 0.01)

    async def swallowing() -> None:
        async with asyncio.timeout(0.01):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            await asyncio.sleep(60)

    with noticing_cancels():
        with pytest.raises(TimeoutError):
            await swallowing()
        check_cancelled()


async def test_cleaning_up_after_a_cancel_is_not_cancelled_again() -> None:
    async def cleaning() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            with noticing_cancels():
                check_cancelled()
            return "clean"
        return "not cancelled"

    task = asyncio.ensure_future(cleaning())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "clean"


async def test_a_server_that_is_away_is_told_within_the_bound_and_without_the_password() -> None:
    db = MongoJobsDB("mongodb://u:secret@127.0.0.1:9/x", command_timeout_seconds=0.5)
    try:
        with pytest.raises(DatabaseUnavailableError) as caught:
            async with asyncio.timeout(5):
                await db.get_job("00000000-0000-7000-8000-000000000000")
    finally:
        await db.close()
    assert "secret" not in str(caught.value)
