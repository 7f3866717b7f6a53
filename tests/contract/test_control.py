"""Cancelling and retrying: one answer for every state of the job and both orders of every race."""

import asyncio
from dataclasses import replace

import pytest
from contract.steps import (
    LINE,
    PROGRESS,
    RAISED,
    claimed,
    complete,
    given_back,
    new_job,
    new_node,
    snapshot,
)
from contract.stores import Store

from app.db.ids import new_id
from app.db.interface import DBInterface
from app.domain.errors import IllegalTransitionError, JobNotFoundError, LeaseLostError
from app.domain.jobs import AttemptOutcome, Cause, ClaimedJob, JobStatus
from app.domain.lifecycle import (
    Cancelled,
    Completed,
    NodeLost,
    NotStarted,
    Outcome,
    Released,
    RetryAsked,
    Verdict,
    decide,
)

RETRIED = RetryAsked(0.0, RAISED.error)


async def finish(db: DBInterface, job: ClaimedJob, outcome: Outcome) -> bool:
    return await db.finish_job(job.claim, decide(outcome, job))


async def ended(db: DBInterface, status: JobStatus, node: str | None = None) -> ClaimedJob:
    """A claimed job that has ended so, with a checkpoint."""
    job = await claimed(db, node)
    await db.save_checkpoint(job.claim, "stage", '{"rows": 3}')
    outcomes: dict[JobStatus, Outcome] = {
        JobStatus.COMPLETED: Completed('"done"'),
        JobStatus.FAILED: RAISED,
        JobStatus.CANCELLED: Cancelled(),
    }
    assert await finish(db, job, outcomes[status])
    return job


# -- cancel -----------------------------------------------------------------------------------


@pytest.mark.parametrize("delay_seconds", [0.0, 3_600.0], ids=["due", "scheduled"])
async def test_a_pending_job_is_cancelled_at_once(db: DBInterface, delay_seconds: float) -> None:
    job_id = await new_job(db, delay_seconds=delay_seconds)

    assert await db.cancel_job(job_id) is JobStatus.CANCELLED

    job = await db.get_job(job_id)
    assert job.status is JobStatus.CANCELLED
    assert job.finished_at == job.cancel_requested_at is not None
    assert await db.claim_next_pending_job(await new_node(db)) is None


async def test_a_job_that_waits_for_its_retry_is_cancelled_at_once(db: DBInterface) -> None:
    node = await new_node(db)
    job = await claimed(db, node, max_attempts=3)
    assert await finish(db, job, RAISED)

    assert await db.cancel_job(job.id) is JobStatus.CANCELLED

    cancelled = await db.get_job(job.id)
    # What happened before stays told.
    assert (cancelled.status, cancelled.error) == (JobStatus.CANCELLED, RAISED.error)
    assert [a.outcome for a in await db.list_attempts(job.id)] == [AttemptOutcome.FAILED]


async def test_a_running_job_is_cancelled_by_whoever_runs_it(db: DBInterface) -> None:
    node = await new_node(db)
    job = await claimed(db, node)

    assert await db.cancel_job(job.id) is JobStatus.RUNNING

    [row] = await db.list_running_jobs(node)
    assert row.cancel_requested
    # Until its processes are gone it runs, and says so.
    await db.report_progress(job.claim, PROGRESS)
    assert (await db.get_job(job.id)).status is JobStatus.RUNNING
    assert await finish(db, job, Cancelled())
    cancelled = await db.get_job(job.id)
    assert (cancelled.status, cancelled.cause) == (JobStatus.CANCELLED, Cause.CANCELLED)


@pytest.mark.parametrize("is_running", [False, True], ids=["pending", "running"])
async def test_a_second_cancel_answers_as_the_first(db: DBInterface, *, is_running: bool) -> None:
    job_id = (await claimed(db)).id if is_running else await new_job(db)

    first = await db.cancel_job(job_id)
    noted = (await db.get_job(job_id)).cancel_requested_at

    assert await db.cancel_job(job_id) is first
    assert (await db.get_job(job_id)).cancel_requested_at == noted


@pytest.mark.parametrize("status", [JobStatus.COMPLETED, JobStatus.FAILED])
async def test_a_job_that_has_ended_stays_as_it_is(db: DBInterface, status: JobStatus) -> None:
    job = await ended(db, status)
    before = await snapshot(db, job.id)

    with pytest.raises(IllegalTransitionError) as caught:
        await db.cancel_job(job.id)

    assert (caught.value.status, caught.value.event) == (status, "cancelled")
    assert await snapshot(db, job.id) == before


@pytest.mark.parametrize("job_id", [new_id(), "no id at all"])
async def test_an_unknown_job_is_neither_cancelled_nor_retried(
    db: DBInterface, job_id: str
) -> None:
    with pytest.raises(JobNotFoundError):
        await db.cancel_job(job_id)
    with pytest.raises(JobNotFoundError):
        await db.retry_job(job_id)


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        # A result that is stored is not thrown away, and a failure is not called a cancel.
        (Completed('"done"'), JobStatus.COMPLETED),
        (Cancelled(), JobStatus.CANCELLED),
        # Whatever would run again does not.
        (RAISED, JobStatus.CANCELLED),
        (RETRIED, JobStatus.CANCELLED),
        (Released(), JobStatus.CANCELLED),
        (NodeLost("gone"), JobStatus.CANCELLED),
        (NotStarted("no process"), JobStatus.CANCELLED),
    ],
    ids=repr,
)
async def test_an_end_after_the_cancel_leads_to_one_documented_status(
    db: DBInterface, outcome: Outcome, status: JobStatus
) -> None:
    job = await claimed(db, max_attempts=3)
    await db.cancel_job(job.id)

    assert await finish(db, job, outcome) is True

    after = await db.get_job(job.id)
    assert after.status is status
    assert after.finished_at is not None
    [attempt] = await db.list_attempts(job.id)
    # The attempt tells what happened to it, the job what became of it.
    assert attempt.outcome is decide(outcome, job).outcome
    assert await db.claim_next_pending_job(await new_node(db)) is None


async def test_a_last_attempt_that_fails_by_itself_is_failed_when_a_cancel_was_wished(
    db: DBInterface,
) -> None:
    job = await claimed(db, max_attempts=1)
    await db.cancel_job(job.id)

    assert await finish(db, job, RAISED)

    assert (await db.get_job(job.id)).status is JobStatus.FAILED


async def test_the_job_of_a_lost_node_is_cancelled_by_its_rescue(
    db: DBInterface, store: Store
) -> None:
    node = await new_node(db)
    job = await claimed(db, node)
    await db.cancel_job(job.id)
    await store.end_lease(node)

    [lost] = await db.list_lost_jobs(10)
    assert await db.rescue_job(lost.claim, decide(NodeLost(node), lost))

    assert (await db.get_job(job.id)).status is JobStatus.CANCELLED


async def test_a_cancel_that_waits_for_an_end_sees_it(db: DBInterface, store: Store) -> None:
    job = await claimed(db)

    won, refused = await store.in_turn(
        job.id, complete(store.connect(), job), db.cancel_job(job.id)
    )

    assert won is True
    assert isinstance(refused, IllegalTransitionError)
    assert (await db.get_job(job.id)).status is JobStatus.COMPLETED


async def test_an_end_that_waits_for_a_cancel_sees_it(db: DBInterface, store: Store) -> None:
    job = await claimed(db, max_attempts=3)

    told, won = await store.in_turn(
        job.id, db.cancel_job(job.id), finish(store.connect(), job, RAISED)
    )

    assert told is JobStatus.RUNNING
    assert won is True
    assert (await db.get_job(job.id)).status is JobStatus.CANCELLED


async def test_a_claim_passes_over_a_job_that_is_being_cancelled(
    db: DBInterface, store: Store
) -> None:
    node = await new_node(db)
    job_id = await new_job(db)

    async with store.holding(job_id):
        cancelling = asyncio.create_task(db.cancel_job(job_id))
        await store.until_blocked(1)
        assert await store.connect().claim_next_pending_job(node) is None

    assert await cancelling is JobStatus.CANCELLED
    assert await db.claim_next_pending_job(node) is None


async def test_many_cancels_and_claims_at_once_leave_each_job_with_one_fate(
    db: DBInterface,
) -> None:
    node = await new_node(db)
    ids = [await new_job(db) for _ in range(30)]

    answers, claims = await asyncio.gather(
        asyncio.gather(*(db.cancel_job(job_id) for job_id in ids)),
        asyncio.gather(*(db.claim_pending_jobs(node, 3) for _ in range(10))),
    )

    running = {job.id for claimed_jobs in claims for job in claimed_jobs}
    told = dict(zip(ids, answers, strict=True))
    for job_id in ids:
        expected = JobStatus.RUNNING if job_id in running else JobStatus.CANCELLED
        assert (await db.get_job(job_id)).status is expected
        assert told[job_id] is expected


# -- retry ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED])
async def test_an_ended_job_runs_again_under_its_id(db: DBInterface, status: JobStatus) -> None:
    node = await new_node(db)
    job = await ended(db, status, node)
    history = await db.list_attempts(job.id)

    await db.retry_job(job.id)

    pending = await db.get_job(job.id)
    assert (pending.status, pending.attempt, pending.node_losses) == (JobStatus.PENDING, 0, 0)
    assert (pending.finished_at, pending.cancel_requested_at) == (None, None)
    assert await db.get_result(job.id) is None
    assert await db.list_attempts(job.id) == history
    again = await db.claim_next_pending_job(node)
    assert again is not None
    assert (again.id, again.attempt, again.claim_no) == (job.id, 1, job.claim_no + 1)
    assert await complete(db, again, '"second"')
    assert await db.get_result(job.id) == b'"second"'
    assert len(await db.list_attempts(job.id)) == len(history) + 1


@pytest.mark.parametrize(
    ("status", "kept"),
    [(JobStatus.FAILED, True), (JobStatus.CANCELLED, True), (JobStatus.COMPLETED, False)],
)
async def test_only_a_completed_job_starts_over(
    db: DBInterface, status: JobStatus, *, kept: bool
) -> None:
    job = await ended(db, status)

    await db.retry_job(job.id)

    assert (await db.load_checkpoint(job.id, "stage") is not None) is kept


async def test_a_retried_job_has_its_whole_budget_again(db: DBInterface) -> None:
    node = await new_node(db)
    job = await claimed(db, node, max_attempts=2)
    assert await db.finish_job(job.claim, _at_once(RETRIED, job))
    second = await db.claim_next_pending_job(node)
    assert second is not None
    assert await finish(db, second, RAISED)
    assert (await db.get_job(job.id)).status is JobStatus.FAILED

    await db.retry_job(job.id)

    third = await db.claim_next_pending_job(node)
    assert third is not None
    assert (third.attempt, third.max_attempts) == (1, 2)
    assert decide(RAISED, third).status is JobStatus.PENDING


@pytest.mark.parametrize("is_running", [False, True], ids=["pending", "running"])
async def test_a_job_that_has_not_ended_is_not_retried(
    db: DBInterface, *, is_running: bool
) -> None:
    job_id = (await claimed(db)).id if is_running else await new_job(db)
    before = await snapshot(db, job_id)

    with pytest.raises(IllegalTransitionError) as caught:
        await db.retry_job(job_id)

    assert caught.value.event == "revived"
    assert await snapshot(db, job_id) == before


async def test_one_of_many_retries_at_once_wins(db: DBInterface) -> None:
    job = await ended(db, JobStatus.FAILED)

    answers = await asyncio.gather(
        *(db.retry_job(job.id) for _ in range(10)), return_exceptions=True
    )

    assert answers.count(None) == 1
    assert all(isinstance(a, IllegalTransitionError) for a in answers if a is not None)


async def test_a_writer_of_the_earlier_life_changes_nothing(db: DBInterface) -> None:
    node = await new_node(db)
    old = await ended(db, JobStatus.FAILED, node)
    await db.retry_job(old.id)
    for is_claimed_anew in (False, True):
        if is_claimed_anew:
            assert await db.claim_next_pending_job(node) is not None
        before = await snapshot(db, old.id)

        for write in (
            db.report_progress(old.claim, PROGRESS, is_milestone=True),
            db.append_logs(old.claim, [LINE]),
            db.save_checkpoint(old.claim, "stage", "{}"),
        ):
            with pytest.raises(LeaseLostError):
                await write
        assert await complete(db, old, '"late"') is False

        assert await snapshot(db, old.id) == before


async def test_a_job_is_cancelled_while_it_waits_after_its_retry(db: DBInterface) -> None:
    job = await ended(db, JobStatus.CANCELLED)
    await db.retry_job(job.id)

    assert await db.cancel_job(job.id) is JobStatus.CANCELLED


async def test_a_released_job_that_was_never_cancelled_runs_again(db: DBInterface) -> None:
    node = await new_node(db)
    job = await ended(db, JobStatus.CANCELLED, node)
    await db.retry_job(job.id)
    again = await db.claim_next_pending_job(node)
    assert again is not None

    # The wish of its earlier life is forgotten.
    await given_back(db, again)

    assert (await db.get_job(job.id)).status is JobStatus.PENDING


def _at_once(outcome: Outcome, job: ClaimedJob) -> Verdict:
    return replace(decide(outcome, job), delay_seconds=0.0)
