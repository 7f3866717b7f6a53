"""Transactions whose process went away in the middle are in nobody's way for long."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.errors import OperationFailure

from app.db.ids import new_id
from app.db.mongo import calls
from app.db.mongo.adapter import MongoJobsDB
from app.db.mongo.calls import Session
from app.domain.jobs import JobStatus, NodeInfo

# The server's own limit is a minute.
SOON_SECONDS = 5.0


@pytest.fixture
async def db(mongo_database_url: str) -> AsyncGenerator[MongoJobsDB, None]:
    adapter = MongoJobsDB(mongo_database_url)
    yield adapter
    await adapter.close()


@contextmanager
def changed_by_somebody_who_is_gone(url: str, job_id: str) -> Iterator[None]:
    gone: MongoClient[dict[str, Any]]
    with MongoClient(url, appname="haulage-worker") as gone:
        session = gone.start_session()
        session.start_transaction()
        jobs: Collection[dict[str, Any]] = gone.get_default_database()["jobs"]
        jobs.update_one({"_id": job_id}, {"$inc": {"writes": 1}}, session=session)
        began = time.monotonic()
        yield
        assert time.monotonic() - began < SOON_SECONDS
        session.end_session()


async def test_a_job_is_cancelled_soon_when_somebody_went_away_who_had_changed_it(
    db: MongoJobsDB, mongo_database_url: str
) -> None:
    job_id = await db.insert_pending_job({})
    with changed_by_somebody_who_is_gone(mongo_database_url, job_id):
        assert await db.cancel_job(job_id) is JobStatus.CANCELLED


@pytest.mark.parametrize("limit", [1, 2])
async def test_jobs_are_claimed_soon_when_somebody_went_away_who_had_changed_one(
    db: MongoJobsDB, mongo_database_url: str, limit: int
) -> None:
    node = NodeInfo(new_id(), "n", 1, 2, 60.0, "0")
    await db.register_node(node)
    ids = [await db.insert_pending_job({}) for _ in range(limit)]
    with changed_by_somebody_who_is_gone(mongo_database_url, ids[0]):
        claimed = await db.claim_pending_jobs(node.id, limit)
        # At first they may be passed over.
        while len(claimed) < limit:
            claimed += await db.claim_pending_jobs(node.id, limit - len(claimed))
    assert {job.id for job in claimed} == set(ids)


async def test_somebody_who_was_only_slow_does_the_transaction_again(
    db: MongoJobsDB, mongo_database_url: str
) -> None:
    job_id = await db.insert_pending_job({})
    has_changed, may_go_on = asyncio.Event(), asyncio.Event()
    seen: list[str] = []
    slow_db = MongoJobsDB(mongo_database_url)

    async def change(session: Session) -> None:
        jobs = slow_db._collection("jobs")
        job = await jobs.find_one_and_update(
            {"_id": job_id}, {"$inc": {"writes": 1}}, session=session
        )
        assert job is not None
        seen.append(job["status"])
        has_changed.set()
        await may_go_on.wait()

    slow = asyncio.create_task(slow_db._in_transaction(change))
    await has_changed.wait()
    assert await db.cancel_job(job_id) is JobStatus.CANCELLED
    may_go_on.set()
    await slow
    await slow_db.close()

    assert seen == ["pending", "cancelled"]


@pytest.mark.parametrize("limit", [1, 2])
async def test_a_server_that_lets_nobody_look_for_them_keeps_no_free_job_from_a_claim(
    db: MongoJobsDB, mongo_database_url: str, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    async def refused(_client: object) -> None:
        raise OperationFailure("not on this tier", 8000)

    monkeypatch.setattr(calls, "end_abandoned", refused)
    node = NodeInfo(new_id(), "n", 1, 2, 60.0, "0")
    await db.register_node(node)
    held, free = [await db.insert_pending_job({}) for _ in range(2)]
    with changed_by_somebody_who_is_gone(mongo_database_url, held):
        claimed = await db.claim_pending_jobs(node.id, limit)
    assert [job.id for job in claimed] == [free]
