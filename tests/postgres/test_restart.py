"""A server that really stops, is killed and comes back: everything resumes by itself."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
from contract.steps import claimed, complete, new_job, new_node
from support.service import process_exists
from support.waiting import eventually

from app.db import migrate
from app.db.postgres.adapter import PostgresJobsDB
from app.db.postgres.embedded import EmbeddedPostgres
from app.db.urls import DatabaseURL
from app.domain.errors import DatabaseUnavailableError
from app.domain.jobs import JobStatus

PATIENCE_SECONDS = 20.0


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    """A server of this test alone, with the newest schema."""
    folder = Path(tempfile.mkdtemp(prefix="haulage-restart-"))
    folder.chmod(0o755)  # as root the server runs under an account that has to get in
    try:
        with EmbeddedPostgres(folder) as running:
            migrate.upgrade(DatabaseURL.parse(running.url("postgres")))
            yield running
    finally:
        shutil.rmtree(folder)


@pytest.fixture
async def db(server: EmbeddedPostgres) -> AsyncGenerator[PostgresJobsDB, None]:
    adapter = PostgresJobsDB(server.url("postgres"))
    yield adapter
    await adapter.close()


async def test_jobs_claims_and_wake_ups_go_on_after_the_server_was_away(
    server: EmbeddedPostgres, db: PostgresJobsDB
) -> None:
    node = await new_node(db)
    job = await claimed(db, node)
    waiting = await new_job(db)
    wake_ups = db.wake_ups()
    await anext(wake_ups)
    await asyncio.to_thread(server.stop, force=True)

    for call in (db.ping, lambda: new_job(db), lambda: complete(db, job)):
        with pytest.raises(DatabaseUnavailableError):
            async with asyncio.timeout(5.0):
                await call()
    woken = asyncio.ensure_future(anext(wake_ups))
    await asyncio.to_thread(server.start)

    async with asyncio.timeout(PATIENCE_SECONDS):
        await woken
    assert await complete(db, job) is True
    next_job = await db.claim_next_pending_job(node)
    assert next_job is not None
    assert next_job.id == waiting
    await wake_ups.aclose()


async def test_nothing_that_was_answered_is_lost_when_the_server_is_killed(
    server: EmbeddedPostgres, db: PostgresJobsDB
) -> None:
    node = await new_node(db)
    jobs = [await claimed(db, node) for _ in range(5)]
    await complete(db, jobs[0])
    pid = server.status().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: _is_gone(pid), "end of the server")

    # Its children end by themselves, a moment later.
    await eventually(lambda: _is_away(db), "end of its children")
    await asyncio.to_thread(server.start)

    await eventually(lambda: _answers(db), "the server's recovery")
    assert (await db.get_job(jobs[0].id)).status is JobStatus.COMPLETED
    assert {row.claim for row in await db.list_running_jobs(node)} == {j.claim for j in jobs[1:]}
    for job in jobs[1:]:
        assert await complete(db, job) is True


async def _is_gone(pid: int) -> bool:
    return not process_exists(pid)


async def _is_away(db: PostgresJobsDB) -> bool:
    return not await _answers(db)


async def _answers(db: PostgresJobsDB) -> bool:
    try:
        await db.ping()
    except DatabaseUnavailableError:
        return False
    return True
