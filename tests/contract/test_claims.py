"""Claiming: in order, never more than asked for, one claimer for each job."""

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from contract.steps import RAISED, claimed, complete, new_job, new_node
from contract.stores import PAUSED_QUEUES, Store

from app.db.ids import new_id
from app.db.interface import DBInterface
from app.domain.jobs import INLINE_PAYLOAD_BYTES, ClaimedJob, JobStatus, Limits
from app.domain.lifecycle import decide

PAST = datetime(2020, 1, 1, tzinfo=UTC)


async def claim_all(db: DBInterface, node: str, limit: int = 100) -> list[str]:
    return [job.id for job in await db.claim_pending_jobs(node, limit)]


async def test_a_claim_tells_all_that_a_worker_needs(db: DBInterface) -> None:
    node = await new_node(db)
    job_id = await new_job(
        db, {"a": [1]}, pipeline="p", max_attempts=3, limits=Limits(2.5, 3.5, 4.5, 2**31)
    )

    job = await db.claim_next_pending_job(node)

    assert job is not None
    stored = await db.get_job(job_id)
    assert stored.started_at is not None
    assert job == ClaimedJob(
        id=job_id,
        claim_no=1,
        pipeline="p",
        attempt=1,
        max_attempts=3,
        node_losses=0,
        timeout_seconds=2.5,
        start_timeout_seconds=3.5,
        stall_seconds=4.5,
        memory_limit_bytes=2**31,
        claimed_at=stored.started_at,
        payload='{"a": [1]}',
    )
    assert (stored.status, stored.node_id, stored.claim_no) == (JobStatus.RUNNING, node, 1)


async def test_a_claim_opens_an_attempt(db: DBInterface) -> None:
    node = await new_node(db)
    job = await claimed(db, node)

    [attempt] = await db.list_attempts(job.id)
    assert (attempt.claim_no, attempt.attempt, attempt.node_id) == (1, 1, node)
    assert attempt.started_at == job.claimed_at
    assert (attempt.pid, attempt.ended_at, attempt.outcome, attempt.cause) == (None,) * 4


async def test_nothing_is_claimed_when_nothing_waits(db: DBInterface) -> None:
    node = await new_node(db)

    assert await db.claim_next_pending_job(node) is None
    assert await db.claim_pending_jobs(node, 10) == []


async def test_jobs_are_claimed_by_priority_then_start_then_id(db: DBInterface) -> None:
    node = await new_node(db)
    later = PAST + timedelta(seconds=1)
    order = [
        await new_job(db, priority=32_767, run_at=later),
        await new_job(db, priority=5, run_at=PAST),
        await new_job(db, priority=5, run_at=PAST),
        await new_job(db, priority=5, run_at=later),
        await new_job(db, run_at=PAST),
        await new_job(db),
        await new_job(db),
        await new_job(db, priority=-1, run_at=PAST),
        await new_job(db, priority=-32_768, run_at=PAST),
    ]

    first = await db.claim_next_pending_job(node)
    assert first is not None
    assert first.id == order[0]
    assert await claim_all(db, node, 3) == order[1:4]
    assert await claim_all(db, node) == order[4:]


async def test_the_order_does_not_depend_on_the_order_of_submission(db: DBInterface) -> None:
    node = await new_node(db)
    waiting = []
    for n in range(30):
        priority, age = n * 7 % 5, n * 11 % 6
        run_at = PAST + timedelta(seconds=age)
        waiting.append((-priority, age, await new_job(db, priority=priority, run_at=run_at)))

    jobs = [job_id for size in (1, 2, 3, 24) for job_id in await claim_all(db, node, size)]

    assert jobs == [job_id for _, _, job_id in sorted(waiting)]


@pytest.mark.parametrize("limit", [0, 1, 3, 5, 50])
async def test_a_batch_is_never_larger_than_its_limit(db: DBInterface, limit: int) -> None:
    node = await new_node(db)
    waiting = [await new_job(db) for _ in range(5)]

    assert await claim_all(db, node, limit) == waiting[:limit]
    assert await db.count_running_jobs(node) == min(limit, 5)


async def test_a_scheduled_job_waits_for_its_start(db: DBInterface) -> None:
    node = await new_node(db)
    await new_job(db, run_at=datetime.now(UTC) + timedelta(hours=1), priority=100)
    await new_job(db, delay_seconds=3_600.0, priority=100)
    due = await new_job(db, run_at=PAST)

    assert await claim_all(db, node) == [due]


async def test_a_delayed_job_is_claimed_once_its_time_has_come(db: DBInterface) -> None:
    node = await new_node(db)
    job_id = await new_job(db, run_at=PAST, delay_seconds=60.0)

    assert await claim_all(db, node) == [job_id]


async def test_other_pipelines_are_passed_over(db: DBInterface) -> None:
    node = await new_node(db)
    other = await new_job(db, pipeline="other", priority=9)
    mine = [await new_job(db, pipeline=name) for name in ("a", "b", "a")]

    assert await db.claim_pending_jobs(node, 9, []) == []
    assert await db.claim_next_pending_job(node, ["unknown", "oth", "OTHER"]) is None
    claims = await db.claim_pending_jobs(node, 9, ("a", "b"))
    assert [job.id for job in claims] == mine
    assert await claim_all(db, node) == [other]


@pytest.mark.needs(PAUSED_QUEUES)
async def test_a_paused_queue_is_passed_over(store: Store, db: DBInterface) -> None:
    node = await new_node(db)
    await store.pause("nightly")
    await new_job(db, queue="nightly", priority=9)
    due = await new_job(db)

    assert await claim_all(db, node) == [due]


async def test_a_node_gets_nothing_when_it_was_never_registered(db: DBInterface) -> None:
    await new_job(db)

    assert await claim_all(db, new_id()) == []


async def test_a_node_gets_nothing_when_it_drains_but_goes_on_renewing(db: DBInterface) -> None:
    node = await new_node(db)
    await new_job(db)
    await db.drain_node(node)

    assert await claim_all(db, node) == []
    assert await db.renew_node(node) is True
    assert await claim_all(db, node) == []


async def test_a_node_gets_nothing_when_it_was_deregistered(db: DBInterface) -> None:
    node = await new_node(db)
    await new_job(db)
    await db.deregister_node(node)

    assert await claim_all(db, node) == []


async def test_a_node_gets_nothing_when_its_lease_has_ended(store: Store, db: DBInterface) -> None:
    node, other = await new_node(db), await new_node(db)
    job_id = await new_job(db)
    await store.end_lease(node)

    assert await claim_all(db, node) == []
    assert await claim_all(db, other) == [job_id]


async def test_running_and_ended_jobs_are_not_claimed(db: DBInterface) -> None:
    node = await new_node(db)
    await claimed(db, node)
    await complete(db, await claimed(db, node))
    failed = await claimed(db, node)
    await db.finish_job(failed.claim, decide(RAISED, failed))

    assert await claim_all(db, node) == []


async def test_a_large_payload_does_not_cross_with_the_claim(db: DBInterface) -> None:
    node = await new_node(db)
    frame = len('{"a": ""}')
    fits = await new_job(db, {"a": "x" * (INLINE_PAYLOAD_BYTES - frame)})
    large = await new_job(db, {"a": "x" * (INLINE_PAYLOAD_BYTES - frame + 1)})
    wide = await new_job(db, {"a": "é" * (INLINE_PAYLOAD_BYTES // 2)})

    jobs = {job.id: job for job in await db.claim_pending_jobs(node, 3)}

    text = jobs[fits].payload
    assert text is not None
    assert len(text) == INLINE_PAYLOAD_BYTES
    assert jobs[large].payload is None
    assert jobs[wide].payload is None
    assert len(await db.load_payload(jobs[large].claim)) == INLINE_PAYLOAD_BYTES + 1


async def test_running_jobs_are_counted_and_listed_by_node(store: Store, db: DBInterface) -> None:
    here, there = await new_node(db), await new_node(db)
    jobs = [await claimed(db, here, max_attempts=2) for _ in range(2)]
    await claimed(db, there)
    await new_job(db)
    await store.ask_to_cancel(jobs[1].id)

    assert await db.count_running_jobs(here) == 2
    assert await db.count_running_jobs() == 3
    assert await db.count_running_jobs(new_id()) == 0
    rows = {row.id: row for row in await db.list_running_jobs(here)}
    assert {row.claim for row in rows.values()} == {job.claim for job in jobs}
    for job in jobs:
        row = rows[job.id]
        assert (row.node_id, row.attempt, row.max_attempts, row.node_losses) == (here, 1, 2, 0)
        assert 0.0 <= row.run_seconds < 60.0
        assert row.cancel_requested is (job is jobs[1])
    assert await db.list_running_jobs(new_id()) == []


async def test_no_job_is_claimed_twice_when_eight_claim_at_once(store: Store) -> None:
    adapters = [store.connect(notify=False) for _ in range(8)]
    nodes = [await new_node(db) for db in adapters]
    # Submitted meanwhile, so that claimers meet at the head of a short queue again and again.
    ids: list[str] = []

    async def submit(db: DBInterface) -> None:
        for n in range(50):
            ids.append(await new_job(db, priority=n % 3))  # noqa: PERF401  others watch it grow

    async def claim(db: DBInterface, node: str, limit: int) -> list[str]:
        mine: list[str] = []
        while True:
            are_all_submitted = len(ids) == 400
            batch = await db.claim_pending_jobs(node, limit)
            assert len(batch) <= limit
            mine += [job.id for job in batch]
            if are_all_submitted and not batch:
                return mine

    async with asyncio.TaskGroup() as group:
        for db in adapters:
            group.create_task(submit(db))
        claiming = [
            group.create_task(claim(db, node, 1 + n % 5))
            for n, (db, node) in enumerate(zip(adapters, nodes, strict=True))
        ]

    got = [task.result() for task in claiming]
    assert sorted(job_id for mine in got for job_id in mine) == sorted(ids)
    assert len(set(ids)) == 400
    for db, node, mine in zip(adapters, nodes, got, strict=True):
        assert await db.count_running_jobs(node) == len(mine)
        for job_id in mine:
            [attempt] = await db.list_attempts(job_id)
            assert (attempt.claim_no, attempt.node_id) == (1, node)


async def test_claimers_share_the_queue_when_they_start_together(store: Store) -> None:
    adapters = [store.connect(notify=False) for _ in range(8)]
    nodes = [await new_node(db) for db in adapters]
    waiting = [await new_job(adapters[0]) for _ in range(80)]

    batches = await asyncio.gather(
        *(db.claim_pending_jobs(node, 10) for db, node in zip(adapters, nodes, strict=True))
    )

    assert all(len(batch) <= 10 for batch in batches)
    ids = [job.id for batch in batches for job in batch]
    assert len(ids) == len(set(ids))
    for batch in batches:
        assert all(a.id < b.id for a, b in pairwise(batch))
    rest = await adapters[0].claim_pending_jobs(nodes[0], 80)
    assert sorted(ids + [job.id for job in rest]) == waiting


@pytest.mark.parametrize("limit", [1, 2, 9])
@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "middle", "last"])
async def test_a_held_job_is_passed_over_without_waiting(
    store: Store, db: DBInterface, place: int, limit: int
) -> None:
    node = await new_node(db)
    jobs = [await new_job(db) for _ in range(3)]
    held = jobs.pop(place)

    async with store.holding(held):
        claims = await claim_all(db, node, limit)
        # As many as were asked for, whatever is held among them.
        assert claims == jobs[:limit]
        assert await claim_all(db, node) == jobs[limit:]
        assert await claim_all(db, node) == []

    assert await claim_all(db, node) == [held]
    for job_id in (held, *jobs):
        [attempt] = await db.list_attempts(job_id)
        assert attempt.claim_no == 1
