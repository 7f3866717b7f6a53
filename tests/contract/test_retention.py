"""Retention: what is old enough goes with all that belongs to it, and nothing else."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from contract.steps import CALL, RAISED, claimed, complete, new_job, new_node
from contract.stores import Store

from app.db.interface import DBInterface
from app.domain.errors import DatasetNotFoundError, JobDeletedError, JobNotFoundError
from app.domain.jobs import JobStatus
from app.domain.lifecycle import Cancelled, decide
from app.domain.managing import JobFilter
from app.domain.retention import DAY_SECONDS

WEEK = 7 * DAY_SECONDS
ENDS = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)


async def ended(store: Store, db: DBInterface, status: JobStatus, age_seconds: float = 0.0) -> str:
    """A job that ended so, so long ago."""
    job = await claimed(db)
    match status:
        case JobStatus.COMPLETED:
            assert await complete(db, job)
        case JobStatus.FAILED:
            assert await db.finish_job(job.claim, decide(RAISED, job))
        case _:
            assert await db.finish_job(job.claim, decide(Cancelled(), job))
    await store.age(job.id, age_seconds)
    return job.id


async def new_dataset(db: DBInterface) -> str:
    dataset = await db.insert_dataset(
        "a.csv", ["text"], [["one"], ["two"]], sha256="ab" * 32, detected={}
    )
    return dataset.id


@pytest.mark.parametrize("status", ENDS)
async def test_jobs_go_by_their_own_age_with_all_that_belongs_to_them(
    store: Store, db: DBInterface, status: JobStatus
) -> None:
    old = {end: await ended(store, db, end, WEEK + 60) for end in ENDS}
    young = await ended(store, db, status, WEEK - 60)

    assert await db.prune_jobs(status, WEEK, 100) == 1

    gone = old.pop(status)
    assert await store.left_of(gone) == set()
    with pytest.raises(JobDeletedError):
        await db.get_job(gone)
    for kept in (*old.values(), young):
        assert (await db.get_job(kept)).status.is_terminal
    assert await db.prune_jobs(status, WEEK, 100) == 0


async def test_a_job_that_has_not_ended_never_goes(store: Store, db: DBInterface) -> None:
    running = (await claimed(db)).id
    retried = await ended(store, db, JobStatus.FAILED, WEEK)
    await db.retry_job(retried)
    pending = await new_job(db, delay_seconds=3_600)
    for job_id in (running, retried, pending):
        await store.age(job_id, 1_000 * DAY_SECONDS)

    for status in JobStatus:
        assert await db.prune_jobs(status, 0.0, 100) == 0
    assert (await db.get_job(running)).status is JobStatus.RUNNING


async def test_a_batch_is_as_large_as_was_said_and_takes_the_oldest(
    store: Store, db: DBInterface
) -> None:
    jobs = [await ended(store, db, JobStatus.COMPLETED, WEEK + n) for n in (10, 50, 30, 20, 40)]

    assert await db.prune_jobs(JobStatus.COMPLETED, WEEK, 2) == 2
    for job_id in (jobs[1], jobs[4]):
        with pytest.raises(JobDeletedError):
            await db.get_job(job_id)
    assert await db.prune_jobs(JobStatus.COMPLETED, WEEK, 2) == 2
    assert await db.prune_jobs(JobStatus.COMPLETED, WEEK, 2) == 1
    assert await db.prune_jobs(JobStatus.COMPLETED, WEEK, 2) == 0


@pytest.mark.parametrize("place", [0, 2, 4])
async def test_what_somebody_holds_is_passed_over_without_waiting(
    store: Store, db: DBInterface, place: int
) -> None:
    jobs = [await ended(store, db, JobStatus.COMPLETED, WEEK + 100 - n) for n in range(5)]
    held = jobs.pop(place)

    async with store.holding(held), asyncio.timeout(20):
        assert await db.prune_jobs(JobStatus.COMPLETED, WEEK, 100) == 4
    for job_id in jobs:
        with pytest.raises(JobDeletedError):
            await db.get_job(job_id)
    assert await db.prune_jobs(JobStatus.COMPLETED, WEEK, 100) == 1


async def test_two_at_once_take_each_job_once(store: Store, db: DBInterface) -> None:
    for n in range(40):
        await ended(store, db, JobStatus.COMPLETED, WEEK + n)

    async def prune() -> int:
        mine, total = store.connect(), 0
        while (await mine.count_jobs(JobFilter())).count:
            total += await mine.prune_jobs(JobStatus.COMPLETED, WEEK, 3)
        return total

    assert sum(await asyncio.gather(prune(), prune(), prune())) == 40


async def test_a_deleted_job_is_forgotten_in_the_end(store: Store, db: DBInterface) -> None:
    first, second = [await ended(store, db, JobStatus.COMPLETED, WEEK) for _ in range(2)]
    await db.delete_job(first)
    await store.age_all(WEEK)
    await db.delete_job(second)

    assert await db.prune_tombstones(WEEK - 60, 100) == 1

    with pytest.raises(JobNotFoundError) as caught:
        await db.get_job(first)
    assert type(caught.value) is JobNotFoundError
    with pytest.raises(JobDeletedError):
        await db.get_job(second)


async def test_a_dataset_goes_when_no_job_names_it(store: Store, db: DBInterface) -> None:
    unnamed, by_row, by_payload = [await new_dataset(db) for _ in range(3)]
    one = await ended(store, db, JobStatus.COMPLETED)
    await store.name_dataset(one, by_row)
    other = await new_job(db, {"dataset": {"id": by_payload}})
    odd_ones: tuple[Any, ...] = ("x", 3, None, [], {"id": 7})
    for odd in odd_ones:
        await new_job(db, {"dataset": odd})
    await store.age_all(WEEK)
    young = await new_dataset(db)

    assert await db.prune_datasets(WEEK - 60, 100) == 1
    assert await db.prune_datasets(WEEK - 60, 100) == 0

    with pytest.raises(DatasetNotFoundError):
        await db.get_dataset(unnamed)
    for kept in (by_row, by_payload, young):
        assert (await db.get_dataset(kept)).row_count == 2
    assert await store.count_datasets() == (3, 6)
    # With the last job that names it a dataset goes too.
    await db.cancel_job(other)
    await db.delete_job(other)
    await db.delete_job(one)
    assert await db.prune_datasets(WEEK - 60, 1) == 1
    assert await db.prune_datasets(WEEK - 60, 1) == 1
    assert await store.count_datasets() == (1, 2)


async def test_kept_answers_go_by_age_and_what_they_cost_stays(
    store: Store, db: DBInterface
) -> None:
    job = await claimed(db)
    await db.save_call(job.claim, CALL)
    assert await db.prune_calls(60.0, 100) == 0
    await store.age_all(120)

    assert await db.prune_calls(60.0, 100) == 1

    assert await db.load_call(CALL.key) is None
    assert [usage.calls for usage in await db.list_usage(job.id)] == [1]


async def test_nodes_go_a_while_after_their_end_unless_a_job_is_said_to_run_there(
    store: Store, db: DBInterface
) -> None:
    lost, stopped, working = [await new_node(db) for _ in range(3)]
    job = await claimed(db, working)
    await db.deregister_node(stopped)
    await store.age_all(WEEK + 60)
    alive = await new_node(db)
    fresh = await new_node(db)
    await db.deregister_node(fresh)

    # Who has a lease is not gone before its end.
    assert await db.prune_nodes(WEEK + 30, 100) == 1
    assert stopped not in {node.id for node in await db.list_nodes(99)}
    assert await db.prune_nodes(WEEK, 100) == 1

    assert {node.id for node in await db.list_nodes(99)} == {working, alive, fresh}
    assert lost not in {node.id for node in await db.list_nodes(99)}
    assert (await db.get_job(job.id)).node_id == working
    # A node without a row is as lost as before.
    assert [row.id for row in await db.list_lost_jobs(10)] == [job.id]


@pytest.mark.parametrize("what", ["datasets", "calls", "nodes", "tombstones"])
async def test_nothing_goes_where_nothing_is(db: DBInterface, what: str) -> None:
    prune: Callable[[float, int], Awaitable[int]] = getattr(db, f"prune_{what}")
    assert await prune(0.0, 100) == 0
