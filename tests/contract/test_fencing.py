"""Only the holder writes: a claim that is no longer the running one changes nothing."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from contract.steps import (
    CALL,
    LINE,
    PROGRESS,
    claimed,
    complete,
    given_back,
    new_node,
    snapshot,
)
from contract.stores import Store

from app.db.ids import new_id
from app.db.interface import DBInterface
from app.domain.errors import LeaseLostError
from app.domain.jobs import Claim, JobStatus, Progress, Usage
from app.domain.lifecycle import Cancelled, Completed, NodeLost, Outcome, Released, decide
from app.domain.sharing import FailedCalls

Write = Callable[[DBInterface, Claim], Coroutine[Any, Any, Any]]

WRITES: dict[str, Write] = {
    "load_payload": lambda db, claim: db.load_payload(claim),
    "report_started": lambda db, claim: db.report_started(claim, 4_711),
    "report_progress": lambda db, claim: db.report_progress(claim, PROGRESS),
    "milestone": lambda db, claim: db.report_progress(claim, PROGRESS, is_milestone=True),
    "append_logs": lambda db, claim: db.append_logs(claim, [LINE]),
    "save_checkpoint": lambda db, claim: db.save_checkpoint(claim, "stage", "[1]"),
    "save_call": lambda db, claim: db.save_call(claim, CALL),
    "count_cached_calls": lambda db, claim: db.count_cached_calls(claim, "name", "small", 2),
    "count_failed_calls": lambda db, claim: db.count_failed_calls(
        claim, "name", "small", FailedCalls(2)
    ),
}
# Reading does not queue up behind a writer.
LOCKING_WRITES = {name: write for name, write in WRITES.items() if name != "load_payload"}
ENDS: dict[str, Outcome] = {
    "completed": Completed('"late"'),
    "cancelled": Cancelled(),
    "released": Released(),
    "node lost": NodeLost("late"),
}


async def _ended(db: DBInterface) -> Claim:
    job = await claimed(db)
    await complete(db, job)
    return job.claim


async def _given_back(db: DBInterface) -> Claim:
    job = await claimed(db)
    await given_back(db, job)
    return job.claim


async def _claimed_by_another_node(db: DBInterface) -> Claim:
    job = await claimed(db)
    await given_back(db, job)
    again = await db.claim_next_pending_job(await new_node(db))
    assert again is not None
    assert again.id == job.id
    return job.claim


async def _claimed_by_the_same_node(db: DBInterface) -> Claim:
    node = await new_node(db)
    job = await claimed(db, node)
    await given_back(db, job)
    again = await db.claim_next_pending_job(node)
    assert again is not None
    assert (again.id, again.claim_no) == (job.id, job.claim_no + 1)
    return job.claim


async def _not_yet_made(db: DBInterface) -> Claim:
    job = await claimed(db)
    return Claim(job.id, job.claim_no + 1)


async def _never_made(db: DBInterface) -> Claim:
    return Claim(await db.insert_pending_job({}), 0)


STALE = {
    "ended": _ended,
    "given back": _given_back,
    "claimed by another node": _claimed_by_another_node,
    "claimed by the same node": _claimed_by_the_same_node,
    "not yet made": _not_yet_made,
    "never made": _never_made,
}


@pytest.fixture(params=STALE)
async def stale(request: pytest.FixtureRequest, db: DBInterface) -> Claim:
    """A claim that is not the running one."""
    return await STALE[request.param](db)


async def test_the_holder_may_write_as_long_as_its_claim_runs(
    db: DBInterface, subtests: pytest.Subtests
) -> None:
    job = await claimed(db)

    for name, write in [*WRITES.items(), *WRITES.items()]:
        with subtests.test(name):
            await write(db, job.claim)

    assert (await db.get_job(job.id)).status is JobStatus.RUNNING


async def test_a_write_changes_nothing_when_its_claim_is_not_the_running_one(
    db: DBInterface, stale: Claim, subtests: pytest.Subtests
) -> None:
    before = await snapshot(db, stale.job_id)

    for name, write in WRITES.items():
        with subtests.test(name):
            with pytest.raises(LeaseLostError) as caught:
                await write(db, stale)
            assert (caught.value.job_id, caught.value.claim_no) == (stale.job_id, stale.claim_no)
            assert await snapshot(db, stale.job_id) == before


async def test_an_end_changes_nothing_when_its_claim_is_not_the_running_one(
    db: DBInterface, stale: Claim, subtests: pytest.Subtests
) -> None:
    job = await db.get_job(stale.job_id)
    before = await snapshot(db, stale.job_id)

    for name, outcome in ENDS.items():
        with subtests.test(name):
            verdict = decide(outcome, job)
            assert await db.finish_job(stale, verdict, Usage(1, 1.0)) is False
            assert await db.rescue_job(stale, verdict) is False
            assert await snapshot(db, stale.job_id) == before


async def test_a_write_is_refused_when_the_job_does_not_exist(
    db: DBInterface, subtests: pytest.Subtests
) -> None:
    for name, write in WRITES.items():
        with subtests.test(name), pytest.raises(LeaseLostError):
            await write(db, Claim(new_id(), 1))


async def test_the_new_holder_writes_on_when_the_old_one_was_refused(db: DBInterface) -> None:
    old = await claimed(db)
    await given_back(db, old)
    new = await db.claim_next_pending_job(await new_node(db))
    assert new is not None

    for write in WRITES.values():
        with pytest.raises(LeaseLostError):
            await write(db, old.claim)
        await write(db, new.claim)

    assert await complete(db, new) is True
    assert [attempt.pid for attempt in await db.list_attempts(old.id)] == [None, 4_711]


# -- both orders of each race -----------------------------------------------------------------


@pytest.mark.parametrize("write", LOCKING_WRITES.values(), ids=LOCKING_WRITES)
async def test_a_write_is_refused_when_it_waited_for_the_end_of_its_job(
    store: Store, db: DBInterface, write: Write
) -> None:
    job = await claimed(db)
    late = store.connect()

    won, refused = await store.in_turn(job.id, complete(db, job), write(late, job.claim))

    assert won is True
    assert isinstance(refused, LeaseLostError)
    assert await db.list_milestones(job.id) == []
    assert await db.list_logs(job.id) == []
    assert await db.load_checkpoint(job.id, "stage") is None
    assert await db.list_usage(job.id) == []


@pytest.mark.parametrize("write", LOCKING_WRITES.values(), ids=LOCKING_WRITES)
async def test_a_write_counts_when_the_end_of_its_job_waited_for_it(
    store: Store, db: DBInterface, write: Write
) -> None:
    job = await claimed(db)
    late = store.connect()

    written, won = await store.in_turn(job.id, write(late, job.claim), complete(db, job))

    assert written is None
    assert won is True
    assert (await db.get_job(job.id)).status is JobStatus.COMPLETED


async def test_a_write_is_refused_when_it_waited_while_the_job_was_claimed_anew(
    store: Store, db: DBInterface
) -> None:
    node = await new_node(db)
    job = await claimed(db, node)
    late = store.connect()

    _, refused = await store.in_turn(
        job.id, given_back(db, job), late.report_progress(job.claim, Progress(0.9))
    )
    again = await db.claim_next_pending_job(node)

    assert isinstance(refused, LeaseLostError)
    assert again is not None
    assert (await db.get_job(job.id)).progress is None
