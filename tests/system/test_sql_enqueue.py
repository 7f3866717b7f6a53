"""Jobs that other programs submit by SQL: run at their commit, never after a rollback."""

import asyncio
import functools
import os
import statistics
from datetime import datetime

import asyncpg
import pytest
from support.enqueueing import enqueue
from support.service import wait_until
from support.sql import attempts, job_row, rows
from system.conftest import Start
from system.stores import SQL

pytestmark = pytest.mark.needs(SQL)

POLL_SECONDS = 30
STARTS = 20


async def committed_job(url: str) -> tuple[str, datetime]:
    """A job's id and the moment before its commit, by the database's clock."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            job_id = await enqueue(connection, {"n": 1}, pipeline="demo-echo")
            before: datetime = await connection.fetchval("select clock_timestamp()")
        return job_id, before
    finally:
        await connection.close()


async def rolled_back_job(url: str) -> str:
    connection = await asyncpg.connect(url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        job_id = await enqueue(connection, {}, pipeline="demo-echo")
        await transaction.rollback()
        return job_id
    finally:
        await connection.close()


def is_completed(url: str, job_id: str) -> bool:
    return bool(job_row(url, job_id)["status"] == "completed")


def test_a_committed_job_starts_without_a_poll_and_one_that_is_rolled_back_never_does(
    start: Start, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = []
    never = []
    with start("worker", poll_interval_seconds=POLL_SECONDS):
        for _ in range(STARTS):
            never.append(asyncio.run(rolled_back_job(database_url)))
            job_id, committed_at = asyncio.run(committed_job(database_url))
            wait_until(functools.partial(is_completed, database_url, job_id), "end")
            [attempt] = attempts(database_url, job_id)
            seconds.append((attempt["started_at"] - committed_at).total_seconds())

    median = statistics.median(seconds)
    with capsys.disabled():
        load = os.getloadavg()[0]
        print(  # noqa: T201  a figure that readers of the log look for
            f"\ncommit -> claimed, median of {STARTS}: {median * 1_000:.1f} ms (load {load:.1f})"
        )
    assert median < 0.2
    assert max(seconds) < POLL_SECONDS / 2
    stored = {str(row["id"]) for row in rows(database_url, "select id from haulage.jobs")}
    assert len(stored) == STARTS
    assert not stored & set(never)


def test_a_service_tells_what_it_can_run_and_its_default_holds(
    start: Start, database_url: str
) -> None:
    async def submit() -> str:
        connection = await asyncpg.connect(database_url)
        try:
            return await enqueue(connection, {"n": 1})
        finally:
            await connection.close()

    limited = {
        "target": "app.pipelines.demo:Echo",
        "max_attempts": 4,
        "timeout_seconds": 77,
    }
    with start("serve", pipelines={"ours": limited}, pipeline="ours") as service:
        asked = service.job(str(service.client.post("/jobs", json={"payload": {}}).json()["id"]))
        # A worker with another default changes nothing about it.
        with start("worker"):
            job = service.wait_for_end(asyncio.run(submit()))

    same = ("pipeline", "max_attempts", "timeout_seconds", "queue", "priority")
    assert {name: job[name] for name in same} == {name: asked[name] for name in same}
    assert (job["pipeline"], job["max_attempts"], job["timeout_seconds"]) == ("ours", 4, 77.0)
    assert job["status"] == "completed"
