"""Acting on jobs: end them, run them again, remove them; one by one or many at once."""

from http import HTTPStatus

from fastapi import Request, Response
from fastapi.routing import APIRouter

from app.api.managing_schemas import BulkRequest, BulkResponse
from app.api.openapi import headers, problems
from app.api.problems import RETRY_AFTER_SECONDS
from app.api.schemas import JobStateResponse
from app.api.security_quota import Quota
from app.api.versions import beside
from app.db.ids import as_uuid
from app.db.interface import DBInterface
from app.domain.errors import QuotaExceededError
from app.domain.jobs import JobStatus


class ManageRoutes:
    """Routes that change a job after its submission.

    A retry counts for the key that submitted the job.
    """

    def __init__(self, db: DBInterface, quota: Quota) -> None:
        self._db = db
        self._quota = quota

    def add_to(self, router: APIRouter) -> None:
        """Declare the routes."""
        add = router.add_api_route
        add(
            "/jobs/{job_id}/cancel",
            self.cancel_post,
            methods=["POST"],
            response_model=JobStateResponse,
            summary="Cancel a job",
            tags=["jobs"],
            responses={
                200: {"description": "The job is cancelled; nothing of it runs."},
                202: {
                    "model": JobStateResponse,
                    "description": "Its processes are being ended; then it is cancelled.",
                    "headers": headers(Retry_After="Seconds after which asking makes sense."),
                },
                **problems(404, 409, 410, 503),
            },
        )
        add(
            "/jobs/{job_id}/retry",
            self.retry_post,
            methods=["POST"],
            response_model=JobStateResponse,
            summary="Run an ended job again",
            tags=["jobs"],
            responses={
                200: {"headers": headers(Location="Where to follow it.")},
                **problems(404, 409, 410, 429, 503),
            },
        )
        add(
            "/jobs/{job_id}",
            self.delete_job,
            methods=["DELETE"],
            status_code=HTTPStatus.NO_CONTENT,
            response_class=Response,
            summary="Remove an ended job",
            tags=["jobs"],
            responses={
                204: {"description": "The job and everything that belonged to it is gone."},
                **problems(404, 409, 410, 503),
            },
        )
        add(
            "/jobs/cancel",
            self.cancel_jobs_post,
            methods=["POST"],
            response_model=BulkResponse,
            summary="Cancel many jobs",
            tags=["jobs"],
            responses=problems(400, 408, 413, 415, 422, 503),
        )
        add(
            "/jobs/retry",
            self.retry_jobs_post,
            methods=["POST"],
            response_model=BulkResponse,
            summary="Run many ended jobs again",
            tags=["jobs"],
            responses=problems(400, 408, 413, 415, 422, 429, 503),
        )

    async def cancel_post(self, job_id: str, response: Response) -> JobStateResponse:
        """End a job: a pending one at once, a running one with every process that it started.

        It is `cancelled` only when they are gone.
        Asking twice is harmless. A job that has completed or failed stays as it is (409); so does
        a running one whose result is stored before its processes have ended.
        """
        status = await self._db.cancel_job(job_id)
        if status is JobStatus.RUNNING:
            response.status_code = HTTPStatus.ACCEPTED
            response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
        return JobStateResponse(id=_canonical(job_id), status=status)

    async def retry_post(self, job_id: str, response: Response, http: Request) -> JobStateResponse:
        """Make an ended job pending again under its id, with a fresh budget of attempts.

        Attempts, milestones and logs so far stay. A failed or cancelled job goes on from its
        checkpoints; a completed one starts over. It counts against the caps of the key that
        submitted it.
        """
        try:
            await self._db.retry_job(job_id, self._quota.caps)
        except QuotaExceededError as error:
            raise await self._quota.refusal(http, error.violated) from None
        job_id = _canonical(job_id)
        response.headers["Location"] = beside(http, f"/jobs/{job_id}")
        return JobStateResponse(id=job_id, status=JobStatus.PENDING)

    async def delete_job(self, job_id: str) -> Response:
        """Remove a job that has ended, with payload, result, attempts, milestones and logs.

        From then on its id answers 410. A job that has not ended stays (409): cancel it first.
        """
        await self._db.delete_job(job_id)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def cancel_jobs_post(self, request: BulkRequest) -> BulkResponse:
        """End pending and running jobs, each as `POST /jobs/{id}/cancel` does.

        One request changes at most 1,000 of them; repeat it while some are `left`.
        """
        return BulkResponse.of(await self._db.cancel_jobs(request.wanted()))

    async def retry_jobs_post(self, request: BulkRequest) -> BulkResponse:
        """Make failed and cancelled jobs pending again, each as `POST /jobs/{id}/retry` does.

        Completed ones too where the request names that status or the jobs themselves. One
        request changes at most 1,000 of them; repeat it while some are `left`. Those that the caps
        of their keys have no room for are left too; 429 where that is so with all of them.
        """
        return BulkResponse.of(await self._db.retry_jobs(request.wanted(), self._quota.caps))


def _canonical(job_id: str) -> str:
    """The id as we write it, of one that the store has understood."""
    return str(as_uuid(job_id) or job_id)
