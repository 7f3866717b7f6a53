"""Transactions whose process went away in the middle are in nobody's way for long."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection

from app.db.mongo.adapter import MongoJobsDB
from app.db.mongo.calls import Session
from app.domain.jobs import JobStatus

# The server's own limit is a minute.
SOON_SECONDS = 5.0


@pytest.fixture
async def db(mongo_database_url: str) -> AsyncGenerator[MongoJobsDB, None]:
    adapter = MongoJobsDB(mongo_database_url)
    yield adapter
    await adapter.close()


async def test_a_job_is_cancelled_soon_when_somebody_went_away_who_had_changed_it(
    db: MongoJobsDB, mongo_database_url: str
) -> None:
    job_id = await db.insert_pending_job({})
    gone: MongoClient[dict[str, Any]]
    with MongoClient(mongo_database_url, appname="haulage-worker") as gone:
        session = gone.start_session()
        session.start_transaction()
        jobs: Collection[dict[str, Any]] = gone.get_default_database()["jobs"]
        jobs.update_one({"_id": job_id}, {"$inc": {"writes": 1}}, session=session)

        began = time.monotonic()
        assert await db.cancel_job(job_id) is JobStatus.CANCELLED

        assert time.monotonic() - began < SOON_SECONDS
        session.end_session()


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
