"""Cancelling and retrying over HTTP: which answer for which state."""

import httpx2
import pytest
from contract.steps import RAISED, claimed, complete, new_job

from app.db.ids import new_id
from app.db.postgres.adapter import PostgresJobsDB
from app.domain.lifecycle import Cancelled, decide

PROBLEM = "application/problem+json"


async def test_a_pending_job_is_cancelled_at_once(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job_id = await new_job(db)

    for _ in range(2):  # the second time is harmless
        response = await client.post(f"/jobs/{job_id}/cancel")
        assert (response.status_code, response.json()) == (
            200,
            {"id": job_id, "status": "cancelled"},
        )

    job = (await client.get(f"/jobs/{job_id}")).json()
    assert job["status"] == "cancelled"
    assert job["cancel_requested_at"] == job["finished_at"] is not None


async def test_a_running_job_is_not_called_cancelled_before_it_is(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job = await claimed(db)

    for _ in range(2):
        response = await client.post(f"/jobs/{job.id}/cancel")
        assert (response.status_code, response.json()) == (
            202,
            {"id": job.id, "status": "running"},
        )
        assert int(response.headers["retry-after"]) > 0
    assert (await client.get(f"/jobs/{job.id}")).json()["cancel_requested_at"] is not None

    assert await db.finish_job(job.claim, decide(Cancelled(), job))
    response = await client.post(f"/jobs/{job.id}/cancel")
    assert (response.status_code, response.json()["status"]) == (200, "cancelled")


@pytest.mark.parametrize("is_completed", [True, False], ids=["completed", "failed"])
async def test_a_job_that_has_ended_cannot_be_cancelled(
    client: httpx2.AsyncClient, db: PostgresJobsDB, *, is_completed: bool
) -> None:
    job = await claimed(db)
    if is_completed:
        await complete(db, job)
    else:
        await db.finish_job(job.claim, decide(RAISED, job))

    response = await client.post(f"/jobs/{job.id}/cancel")

    assert response.status_code == 409
    assert response.headers["content-type"] == PROBLEM
    status = "completed" if is_completed else "failed"
    assert response.json()["job_status"] == status
    assert response.json()["detail"] == f"a job that is {status} cannot be cancelled"


async def test_an_ended_job_runs_again_when_it_is_retried(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job = await claimed(db)
    await complete(db, job)

    response = await client.post(f"/jobs/{job.id}/retry")

    assert (response.status_code, response.json()) == (200, {"id": job.id, "status": "pending"})
    assert response.headers["location"] == f"/jobs/{job.id}"
    assert (await client.get(f"/jobs/{job.id}/result")).status_code == 409
    # It has not ended any more.
    response = await client.post(f"/jobs/{job.id}/retry")
    assert (response.status_code, response.json()["job_status"]) == (409, "pending")


@pytest.mark.parametrize("route", ["cancel", "retry"])
@pytest.mark.parametrize("job_id", [new_id(), "none"])
async def test_an_unknown_job_is_not_found(
    client: httpx2.AsyncClient, route: str, job_id: str
) -> None:
    response = await client.post(f"/jobs/{job_id}/{route}")

    assert response.status_code == 404
    assert response.headers["content-type"] == PROBLEM
