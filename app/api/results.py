"""What a completed job has left."""

from http import HTTPStatus

from fastapi import Response
from fastapi.routing import APIRouter

from app.api.openapi import problems
from app.api.problems import RETRY_AFTER_SECONDS, Problem
from app.db.interface import DBInterface
from app.domain.jobs import JobStatus


class ResultRoutes:
    """Routes below `/jobs/{job_id}/result`."""

    def __init__(self, db: DBInterface) -> None:
        self._db = db

    def add_to(self, router: APIRouter) -> None:
        """Declare the routes."""
        add = router.add_api_route
        add(
            "/jobs/{job_id}/result",
            self.get_result,
            methods=["GET"],
            summary="Fetch what the pipeline returned",
            tags=["jobs"],
            response_class=Response,
            responses={
                200: {
                    "description": "The stored result.",
                    "content": {"application/json": {"schema": {}}},
                },
                **problems(404, 409, 410, 503),
            },
        )

    async def get_result(self, job_id: str) -> Response:
        """The result exactly as stored; 409 with the status while there is none."""
        result = await self._db.get_result(job_id)
        if result is not None:
            return Response(result, media_type="application/json")
        job = await self._db.get_job(job_id)
        if job.status is JobStatus.COMPLETED and (
            result := await self._db.get_result(job_id)  # it ended between the two looks
        ):
            return Response(result, media_type="application/json")
        detail = f"job {job_id} is {job.status}" + (
            f": {job.error.message}" if job.error is not None else ""
        )
        headers = {} if job.status.is_terminal else {"Retry-After": str(RETRY_AFTER_SECONDS)}
        raise Problem(
            HTTPStatus.CONFLICT, "no-result", detail, headers=headers, job_status=job.status
        )
