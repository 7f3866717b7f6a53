"""Searches over MongoDB that take too long, and those of a server that says nothing."""

from typing import Any

import pytest
from contract.steps import new_job
from support import mongo
from support.processes import frozen

from app.db.mongo import managing, upgrading
from app.db.mongo.adapter import MongoJobsDB
from app.domain.errors import DatabaseUnavailableError, SearchTooLongError
from app.domain.managing import JobFilter

ROWS = 10_000
NOTHING = JobFilter(pipeline="nothing")


async def test_a_search_that_takes_too_long_is_always_told_as_such(
    mongo_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = MongoJobsDB(mongo_database_url, notify=False)
    job_id = await new_job(db)
    with mongo.client(mongo_database_url) as opened:
        jobs: Any = opened.get_default_database()["jobs"]
        template = jobs.find_one({"_id": job_id})
        jobs.insert_many([{**template, "_id": f"{n:036}"} for n in range(ROWS)])
    assert (await db.list_jobs(NOTHING, limit=10)).jobs == ()

    monkeypatch.setattr(managing, "SEARCH_SECONDS", 0.001)
    for _ in range(20):
        with pytest.raises(SearchTooLongError):
            await db.list_jobs(NOTHING, limit=10)
        with pytest.raises(SearchTooLongError):
            await db.count_jobs(NOTHING)
    await db.close()


async def test_a_search_ends_in_time_when_the_server_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(managing, "SEARCH_SECONDS", 0.2)
    monkeypatch.setattr(managing, "ANSWER_SECONDS", 0.2)
    with mongo.replica_set(1) as (url, [server]):
        upgrading.upgrade(url)
        assert server.process is not None
        db = MongoJobsDB(url, notify=False)
        await db.list_jobs(NOTHING, limit=10)
        with frozen(server.process.pid):
            with pytest.raises(DatabaseUnavailableError, match="no answer in time"):
                await db.list_jobs(NOTHING, limit=10)
            await db.close()
