"""Wake-ups: hints that jobs may have become due, merged, from anywhere in the store."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from contract.steps import RAISED, claimed, given_back, new_job, new_node
from contract.stores import COUNTED_WAKE_UPS, Store

from app.db.interface import DBInterface
from app.domain.jobs import JobStatus, WakeUp
from app.domain.lifecycle import NodeLost, decide

# Longer than any wake-up takes; only tests that expect none wait for its end.
PATIENCE_SECONDS = 20.0


@asynccontextmanager
async def listening(db: DBInterface) -> AsyncIterator[AsyncGenerator[WakeUp, None]]:
    """Wake-ups after the one that says that somebody listens now."""
    wake_ups = db.wake_ups()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await anext(wake_ups)
        yield wake_ups
    finally:
        await wake_ups.aclose()


async def woken(wake_ups: AsyncGenerator[WakeUp, None]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        await anext(wake_ups)


async def test_a_listener_is_woken_when_it_begins(db: DBInterface) -> None:
    async with listening(db):
        pass


async def test_an_insert_wakes_listeners_of_every_adapter(store: Store, db: DBInterface) -> None:
    async with listening(db) as ours, listening(store.connect()) as theirs:
        await new_job(store.connect())

        await woken(ours)
        await woken(theirs)


async def test_a_job_is_visible_to_whom_its_insert_wakes(store: Store, db: DBInterface) -> None:
    node = await new_node(db)
    async with listening(db) as wake_ups:
        for _ in range(10):
            job_id = await new_job(store.connect())
            job = None
            while job is None:
                await woken(wake_ups)
                job = await db.claim_next_pending_job(node)
            assert job.id == job_id


async def test_the_last_of_many_inserts_is_followed_by_a_wake_up(
    store: Store, db: DBInterface
) -> None:
    node = await new_node(db)
    submitter = store.connect()
    async with listening(db) as wake_ups:
        await asyncio.gather(*(new_job(submitter) for _ in range(100)))

        claims = 0
        while claims < 100:
            await woken(wake_ups)
            claims += len(await db.claim_pending_jobs(node, 100))


async def test_a_job_that_comes_back_wakes_listeners(store: Store, db: DBInterface) -> None:
    node, lost_node = await new_node(db), await new_node(db)
    released, lost = await claimed(db, node), await claimed(db, lost_node)
    await store.end_lease(lost_node)
    async with listening(store.connect()) as wake_ups:
        await given_back(db, released)
        await woken(wake_ups)

        await db.rescue_job(lost.claim, decide(NodeLost(lost_node), lost))
        await woken(wake_ups)


@pytest.mark.needs(COUNTED_WAKE_UPS)
async def test_nobody_is_woken_when_the_job_is_not_due(store: Store, db: DBInterface) -> None:
    job = await claimed(store.connect(notify=False), max_attempts=2)
    async with store.counting_wake_ups() as count:
        await new_job(db, run_at=datetime.now(UTC) + timedelta(hours=1))
        await new_job(db, delay_seconds=60.0)
        await db.finish_job(job.claim, decide(RAISED, job))
        await db.close()  # returns once its wishes have been sent

        assert await count() == 0


@pytest.mark.needs(COUNTED_WAKE_UPS)
@pytest.mark.parametrize("notify", [True, False])
async def test_an_insert_wakes_somebody_unless_notifying_is_off(
    store: Store, *, notify: bool
) -> None:
    db = store.connect(notify=notify)
    async with store.counting_wake_ups() as count:
        await new_job(db)
        await db.close()

        assert await count() == int(notify)


async def test_a_second_iteration_starts_anew_after_the_first_was_closed(db: DBInterface) -> None:
    for _ in range(2):
        async with listening(db) as wake_ups:
            await new_job(db)
            await woken(wake_ups)
        with pytest.raises(StopAsyncIteration):
            await anext(wake_ups)


async def test_a_waiting_listener_ends_when_its_task_is_cancelled(db: DBInterface) -> None:
    async with listening(db) as wake_ups:
        waiting = asyncio.ensure_future(anext(wake_ups))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_cancel_wakes_for_control_when_the_job_runs(store: Store, db: DBInterface) -> None:
    job = await claimed(db)
    async with listening(db) as wake_ups:
        assert await store.connect().cancel_job(job.id) is JobStatus.RUNNING

        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await anext(wake_ups) is WakeUp.CONTROL


async def test_a_retry_wakes_for_jobs(store: Store, db: DBInterface) -> None:
    job = await claimed(db)
    await db.finish_job(job.claim, decide(RAISED, job))
    async with listening(db) as wake_ups:
        await store.connect().retry_job(job.id)

        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await anext(wake_ups) is WakeUp.JOBS
