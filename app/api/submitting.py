"""Submitting one job."""

import asyncio
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request, Response
from fastapi.routing import APIRouter

from app.api.intake import (
    KEY_HEADER,
    KEY_PATTERN,
    REPLAYED_HEADER,
    Intake,
    key_of,
    submitter_of,
    unknown_dataset,
)
from app.api.openapi import QUOTA, headers, problems
from app.api.problems import RETRY_AFTER_SECONDS
from app.api.requests import OFF_LOOP_BYTES
from app.api.schemas import EnqueueRequest, EnqueueResponse
from app.api.security_quota import Quota
from app.api.versions import beside
from app.db.interface import DBInterface
from app.domain.submissions import Submission

SUBMITTED: Final[dict[str, Any]] = {
    "headers": {
        **headers(
            Location="Where to follow what was submitted.",
            Retry_After="Seconds after which asking for it makes sense.",
            Idempotency_Replayed="`true` where the idempotency key had been used: nothing is new.",
        ),
        **QUOTA,
    }
}
# For every route that submits; what FastAPI does not know of a header that it does not read.
KEY_PARAMETER: Final[dict[str, Any]] = {
    "name": KEY_HEADER,
    "in": "header",
    "required": False,
    "description": "Any name for this submission, bare or in double quotes. A second one under "
    "the same key gets the first one's answer, with other content 422. A key lives as long as the "
    "job that it made.",
    "schema": {"type": "string", "pattern": KEY_PATTERN},
}


class SubmitRoutes:
    """Routes that take jobs in."""

    def __init__(self, db: DBInterface, intake: Intake, quota: Quota) -> None:
        self._db = db
        self._intake = intake
        self._quota = quota

    def add_to(self, router: APIRouter) -> None:
        """Declare the routes."""
        router.add_api_route(
            "/jobs",
            self.submit_post,
            methods=["POST"],
            status_code=HTTPStatus.ACCEPTED,
            response_model=EnqueueResponse,
            summary="Submit a job, answered by 202",
            tags=["jobs"],
            responses={202: SUBMITTED, **problems(400, 408, 413, 415, 422, 429, 503)},
            openapi_extra={"parameters": [KEY_PARAMETER]},
        )

    async def submit_post(
        self, request: EnqueueRequest, response: Response, http: Request
    ) -> EnqueueResponse:
        """As `POST /enqueue`, with the status that HTTP has for work that is done later."""
        return await self.submit(request, response, http)

    async def submit(
        self, request: EnqueueRequest, response: Response, http: Request
    ) -> EnqueueResponse:
        """Store the job, or find the one that the request's idempotency key made before."""
        key = key_of(http)
        submitter = submitter_of(http)

        def prepare() -> Submission:
            return self._intake.submission(request, submitter=submitter, key=key)

        # A large payload takes tens of milliseconds to check and dump: not on the event loop.
        is_large = len(await http.body()) > OFF_LOOP_BYTES
        submission = await asyncio.to_thread(prepare) if is_large else prepare()
        room = await self._quota.admit(http, 1, len(submission.payload), [key])
        with unknown_dataset():
            job_id = await self._db.insert_pending_job(submission.payload, submission.options)
        response.headers.update(room)
        if key is not None and job_id != submission.options.job_id:
            response.headers[REPLAYED_HEADER] = "true"
        response.headers["Location"] = beside(http, f"/jobs/{job_id}")
        response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
        return EnqueueResponse(id=job_id)
