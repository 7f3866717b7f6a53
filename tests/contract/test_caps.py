"""Caps on what a submitter has waiting hold for jobs that begin again, too."""

from typing import Any

import pytest
from contract.steps import new_job

from app.db.interface import DBInterface
from app.db.postgres import managing
from app.domain.errors import QuotaExceededError
from app.domain.jobs import JobStatus
from app.domain.keys import PendingCaps, Scope, new_key
from app.domain.managing import BulkChange, JobFilter


async def _over(db: DBInterface, **options: Any) -> str:
    """A job that was cancelled."""
    job_id = await new_job(db, {"text": "x" * 500}, **options)
    await db.cancel_job(job_id)
    return job_id


async def test_a_retry_counts_against_the_caps_of_the_submitter(db: DBInterface) -> None:
    over, waiting = await _over(db, submitted_by="a"), await new_job(db, submitted_by="a")
    size = (await db.count_pending("a")).size_bytes
    for caps, violated in (
        (PendingCaps(1, 10**6), "pending-jobs"),
        (PendingCaps(9, size + 1), "pending-bytes"),
    ):
        with pytest.raises(QuotaExceededError) as caught:
            await db.retry_job(over, caps)
        assert caught.value.violated == (violated,)
        assert (await db.get_job(over)).status is JobStatus.CANCELLED

    await db.retry_job(over, PendingCaps(2, 10**6))
    await db.cancel_job(over)
    await db.cancel_job(waiting)
    await db.retry_job(over, PendingCaps(1, 10**6))
    await db.retry_job(waiting)
    # Nobody known has no caps.
    await db.retry_job(await _over(db), PendingCaps(0, 0))


async def test_a_key_s_own_caps_go_before_the_general_ones(db: DBInterface) -> None:
    narrow = await db.insert_key("n", new_key(), Scope.SUBMIT, max_pending_jobs=0)
    wide = await db.insert_key("w", new_key(), Scope.SUBMIT, max_pending_jobs=9)
    with pytest.raises(QuotaExceededError):
        await db.retry_job(await _over(db, submitted_by=narrow.id), PendingCaps(9, 10**6))
    await db.retry_job(await _over(db, submitted_by=wide.id), PendingCaps(0, 10**6))


async def test_of_many_retries_those_without_room_are_left(db: DBInterface) -> None:
    mine = [await _over(db, submitted_by="a") for _ in range(3)]
    await _over(db)
    wanted, caps = JobFilter(statuses=(JobStatus.CANCELLED,)), PendingCaps(2, 10**6)

    assert await db.retry_jobs(wanted, caps) == BulkChange(4, 3, 1)
    assert (await db.count_pending("a")).jobs == 2
    with pytest.raises(QuotaExceededError):
        await db.retry_jobs(wanted, caps)

    for job_id in mine:
        if (await db.get_job(job_id)).status is JobStatus.PENDING:
            await db.cancel_job(job_id)
            break
    assert await db.retry_jobs(wanted, caps) == BulkChange(2, 1, 1)


async def test_a_job_that_fits_under_no_cap_is_in_nobodys_way(db: DBInterface) -> None:
    large = await new_job(db, {"text": "".join(map(str, range(3_000)))}, submitted_by="a")
    size = (await db.count_pending("a")).size_bytes
    await db.cancel_job(large)
    small = [await _over(db, submitted_by="a") for _ in range(2)]
    wanted, caps = JobFilter(statuses=(JobStatus.CANCELLED,)), PendingCaps(2, size - 1)

    assert await db.retry_jobs(wanted, caps) == BulkChange(3, 2, 1)

    for job_id in small:
        assert (await db.get_job(job_id)).status is JobStatus.PENDING


async def test_however_many_have_no_room_others_are_not_kept_back_by_them(
    db: DBInterface, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(managing, "MAX_BULK", 2)
    older = await _over(db, submitted_by="b")
    for _ in range(3):
        await _over(db, submitted_by="a")
    await new_job(db, submitted_by="a")
    wanted, caps = JobFilter(statuses=(JobStatus.CANCELLED,)), PendingCaps(1, 10**6)

    assert await db.retry_jobs(wanted, caps) == BulkChange(4, 1, 3)
    assert (await db.get_job(older)).status is JobStatus.PENDING
