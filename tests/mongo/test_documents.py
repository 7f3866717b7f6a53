"""What the contract cannot see of MongoDB: where things lie, which index serves what, cancels."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from contract.steps import claimed, complete, new_job, new_node
from support import mongo

from app.db.mongo import claiming
from app.db.mongo.adapter import MongoJobsDB
from app.db.mongo.connections import check_cancelled, noticing_cancels
from app.db.mongo.documents import MAX_HELD_EVENTS
from app.db.mongo.texts import PIECE_BYTES
from app.domain.errors import DatabaseUnavailableError, TooLargeError
from app.domain.following import FollowCursor
from app.domain.jobs import MAX_CHECKPOINT_BYTES, Progress

ROWS = 3_000


@pytest.fixture
async def db(mongo_database_url: str) -> AsyncIterator[MongoJobsDB]:
    db = MongoJobsDB(mongo_database_url, default_pipeline="by-default", notify=False)
    yield db
    await db.close()


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

    due = documents["jobs"].find(await db._due(claimer, ["by-default"]), hint=claiming._INDEX)
    told = due.sort(claiming._ORDER).limit(10).explain()["executionStats"]

    assert (told["nReturned"], told["totalDocsExamined"]) == (10, 10)
    assert told["totalKeysExamined"] <= 12
    assert "'SORT'" not in str(told)
    claims = await db.claim_pending_jobs(node, 1)
    assert [job.id for job in claims] == [job_id]


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
