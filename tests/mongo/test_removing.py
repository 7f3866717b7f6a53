"""What is removed from MongoDB in several steps: all of it, also where one of them was the last."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from contract.steps import claimed, complete, new_job
from support import mongo

from app.db.mongo.adapter import MongoJobsDB
from app.db.mongo.indexes import BELONGINGS
from app.domain.errors import DatabaseUnavailableError, JobDeletedError
from app.domain.following import LogCursor
from app.domain.jobs import JobStatus, LogLine, Progress
from app.domain.sharing import PaidCall

HOUR = 3_600_000_000
JOBS = 50
LINES = 2_000


@pytest.fixture
async def db(mongo_database_url: str) -> AsyncIterator[MongoJobsDB]:
    db = MongoJobsDB(mongo_database_url, notify=False)
    yield db
    await db.close()


@pytest.fixture
def documents(mongo_database_url: str) -> Iterator[Any]:
    with mongo.client(mongo_database_url) as opened:
        yield opened.get_default_database()


def left(documents: Any) -> set[str]:
    return {name for name in BELONGINGS if documents[name].count_documents({})}


async def test_what_a_deleted_job_has_left_goes_with_the_next_pass_of_retention(
    db: MongoJobsDB, documents: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await claimed(db)
    await db.append_logs(job.claim, [LogLine(1, 20, "log", "x", datetime.now(UTC))])
    await db.save_checkpoint(job.claim, "s", "1")
    await db.report_progress(job.claim, Progress(0.5, "s"), is_milestone=True)
    await db.save_call(job.claim, PaidCall("k", "1", "s", "m"))
    await complete(db, job)

    # As a process leaves it that is killed here.
    async def die(*_: Any) -> None:
        raise DatabaseUnavailableError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(db, "_clear_away", die)
        with pytest.raises(DatabaseUnavailableError):
            await db.delete_job(job.id)
    assert {"job_payloads", "job_results", "job_logs", "usage"} <= left(documents)
    with pytest.raises(JobDeletedError):
        await db.get_job(job.id)
    # Nobody is shown any of it.
    with pytest.raises(JobDeletedError):
        await db.get_payload(job.id)
    with pytest.raises(JobDeletedError):
        await db.get_result(job.id)
    assert await db.list_attempts(job.id) == []
    assert await db.list_attempts_after(job.id, 0, 10) == []
    assert await db.list_milestones(job.id) == []
    assert await db.list_logs(job.id) == []
    [lines] = await db.list_lines([LogCursor(job.id, 0)], 10)
    assert (lines.lines, lines.is_whole) == ((), True)
    assert await db.find_log_tail(job.id, 0) == 0
    assert await db.list_checkpoints(job.id, "", 10) == []
    assert await db.list_checkpoint_stages(job.id) == []
    assert await db.get_checkpoint(job.id, "s") is None
    assert await db.list_usage(job.id) == []
    documents["deleted_jobs"].update_many({}, {"$inc": {"deleted_at": -HOUR}})
    # Its tombstone says that there is something, so it stays for as long.
    assert await db.prune_tombstones(1.0, 10) == 0

    assert await db.prune_jobs(JobStatus.FAILED, 1.0, 10) == 0

    assert left(documents) == set()
    assert await db.prune_tombstones(1.0, 10) == 1


@pytest.mark.slow
async def test_retention_removes_more_lines_of_logs_than_fit_into_a_transaction(
    db: MongoJobsDB, documents: Any
) -> None:
    """A server with a cache of 256 MiB gave up at 100,000 documents, for good and silently."""
    job_id = await new_job(db)
    await db.cancel_job(job_id)
    template = documents["jobs"].find_one({"_id": job_id})
    for name in ("jobs", "job_payloads"):
        documents[name].delete_many({})
    old = template["finished_at"] - HOUR
    ids = [f"{n:036}" for n in range(JOBS)]
    documents["jobs"].insert_many([{**template, "_id": i, "finished_at": old} for i in ids])
    for i in ids:
        documents["job_logs"].insert_many(
            [{"job_id": i, "id": n, "line": "x" * 100} for n in range(LINES)]
        )

    assert await db.prune_jobs(JobStatus.CANCELLED, 1.0, JOBS) == JOBS

    assert left(documents) == set()


async def test_an_endpoint_that_was_switched_off_by_halves_is_not_flooded_later(
    db: MongoJobsDB, documents: Any
) -> None:
    hook = await db.insert_webhook("http://x", ["job.completed"], "secret")
    await complete(db, await claimed(db))
    # As a process leaves it that is killed between the two writes.
    documents["webhooks"].update_one(
        {"_id": hook.id}, {"$set": {"is_active": False, "disabled_reason": "gone"}}
    )

    assert await db.enable_webhook(hook.id)

    [delivery] = await db.list_deliveries(hook.id, 10)
    assert (delivery.status, delivery.last_error) == ("failed", "gone")
    await complete(db, await claimed(db))
    assert len(await db.claim_deliveries(10, 5, {}, 30.0)) == 1
    # Nothing is given up of what is told since then.
    assert await db.enable_webhook(hook.id)
    assert [d.status for d in await db.list_deliveries(hook.id, 10)] == ["pending", "failed"]
