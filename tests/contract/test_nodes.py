"""Nodes and their leases: who may still speak for a job, and whose jobs are lost."""

import asyncio
import os

import pytest
from contract.steps import claimed, complete, new_job, new_node
from contract.stores import Store

from app.db.ids import new_id
from app.db.interface import DBInterface
from app.domain.jobs import AttemptOutcome, Cause, JobStatus, NodeInfo
from app.domain.lifecycle import NodeLost, decide


async def test_a_registered_node_renews_and_claims(db: DBInterface) -> None:
    node = await new_node(db)

    assert await db.renew_node(node) is True
    assert (await claimed(db, node)).attempt == 1


async def test_a_node_renews_nothing_when_it_is_unknown(db: DBInterface) -> None:
    assert await db.renew_node(new_id()) is False


async def test_a_lease_cannot_be_renewed_once_it_has_ended(store: Store, db: DBInterface) -> None:
    node = await new_node(db)
    await store.end_lease(node)

    assert await db.renew_node(node) is False
    assert await db.renew_node(node) is False


async def test_a_tiny_lease_ends_by_itself(db: DBInterface) -> None:
    node = await new_node(db, lease_seconds=1e-6)

    assert await db.renew_node(node) is False


async def test_a_node_cannot_renew_when_it_was_deregistered(db: DBInterface) -> None:
    node = await new_node(db)
    await db.deregister_node(node)

    assert await db.renew_node(node) is False
    await db.deregister_node(node)
    await db.drain_node(node)
    assert await db.renew_node(node) is False


async def test_a_second_boot_of_the_same_machine_is_another_node(db: DBInterface) -> None:
    for _ in range(2):
        await db.register_node(NodeInfo(new_id(), "same-host", os.getpid(), 1, 15.0, "1"))


@pytest.mark.parametrize("end", ["expired", "deregistered", "draining and expired"])
async def test_running_jobs_are_lost_when_their_node_has_ended(
    store: Store, db: DBInterface, end: str
) -> None:
    node, healthy = await new_node(db), await new_node(db)
    job = await claimed(db, node, max_attempts=2)
    await claimed(db, healthy)
    if end == "deregistered":
        await db.deregister_node(node)
    else:
        if end.startswith("draining"):
            await db.drain_node(node)
        await store.end_lease(node)

    [lost] = await db.list_lost_jobs(10)
    assert (lost.claim, lost.node_id) == (job.claim, node)
    assert (lost.attempt, lost.max_attempts, lost.node_losses) == (1, 2, 0)
    assert await db.rescue_job(lost.claim, decide(NodeLost(node), lost)) is True

    rescued = await db.get_job(job.id)
    assert (rescued.status, rescued.attempt, rescued.node_losses) == (JobStatus.PENDING, 0, 1)
    [attempt] = await db.list_attempts(job.id)
    assert (attempt.outcome, attempt.cause) == (AttemptOutcome.LOST, Cause.NODE_LOST)
    assert await db.list_lost_jobs(10) == []


@pytest.mark.parametrize("draining", [False, True])
async def test_a_job_is_not_rescued_when_its_node_is_well(
    db: DBInterface, *, draining: bool
) -> None:
    node = await new_node(db)
    job = await claimed(db, node)
    if draining:
        await db.drain_node(node)

    assert await db.list_lost_jobs(10) == []
    assert await db.rescue_job(job.claim, decide(NodeLost(node), job)) is False

    assert (await db.get_job(job.id)).status is JobStatus.RUNNING
    assert await complete(db, job) is True


async def test_a_node_well_again_keeps_nothing_that_was_rescued(
    store: Store, db: DBInterface
) -> None:
    node = await new_node(db)
    job = await claimed(db, node)
    await store.end_lease(node)
    [lost] = await db.list_lost_jobs(10)

    assert await db.renew_node(node) is False
    assert await db.rescue_job(lost.claim, decide(NodeLost(node), lost)) is True
    assert await db.rescue_job(lost.claim, decide(NodeLost(node), lost)) is False
    assert await complete(db, job) is False


async def test_lost_jobs_come_in_pages_and_healthy_ones_do_not_fill_them(
    store: Store, db: DBInterface
) -> None:
    healthy, node = await new_node(db), await new_node(db)
    for _ in range(6):
        await claimed(db, healthy)
    jobs = [await claimed(db, node) for _ in range(5)]
    await store.end_lease(node)
    for _ in range(3):
        await new_job(db)

    seen = []
    while page := await db.list_lost_jobs(2):
        assert len(page) <= 2
        for lost in page:
            assert await db.rescue_job(lost.claim, decide(NodeLost(node), lost))
            seen.append(lost.id)

    assert seen == [job.id for job in jobs]
    assert await db.count_running_jobs() == 6


async def test_one_rescuer_wins_when_several_see_the_same_lost_jobs(
    store: Store, db: DBInterface
) -> None:
    node = await new_node(db)
    jobs = [await claimed(db, node) for _ in range(10)]
    await store.end_lease(node)

    async def rescue_all(rescuer: DBInterface) -> int:
        lost = await rescuer.list_lost_jobs(100)
        return sum([await rescuer.rescue_job(j.claim, decide(NodeLost(node), j)) for j in lost])

    rescued = await asyncio.gather(*(rescue_all(store.connect()) for _ in range(4)))

    assert sum(rescued) == len(jobs)
    for job in jobs:
        assert (await db.get_job(job.id)).node_losses == 1


async def test_a_rescue_does_nothing_when_the_job_ended_while_it_waited(
    store: Store, db: DBInterface
) -> None:
    node = await new_node(db)
    job = await claimed(db, node)
    await store.end_lease(node)
    [lost] = await store.connect().list_lost_jobs(10)
    rescuer = store.connect()

    rescue = rescuer.rescue_job(lost.claim, decide(NodeLost(node), lost))
    assert await store.in_turn(job.id, complete(db, job), rescue) == (True, False)
    assert (await db.get_job(job.id)).status is JobStatus.COMPLETED
