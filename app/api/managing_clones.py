"""New jobs from old ones: the same work again, with something changed."""

import asyncio
import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRouter

from app.api.intake import (
    REPLAYED_HEADER,
    Intake,
    declares,
    key_of,
    submitter_of,
    unknown_dataset,
)
from app.api.managing_schemas import CloneRequest
from app.api.openapi import problems
from app.api.problems import RETRY_AFTER_SECONDS, Problem
from app.api.requests import OFF_LOOP_BYTES
from app.api.schemas import EnqueueResponse
from app.api.security_quota import Quota
from app.api.submitting import KEY_PARAMETER, SUBMITTED
from app.api.versions import beside
from app.db.interface import DBInterface
from app.domain.errors import InvalidJsonError
from app.domain.jobs import MAX_PAYLOAD_BYTES, Registration
from app.domain.json_values import check_storable, dump_storable

START_FROM = "start_from"


class CloneRoutes:
    """`POST /jobs/{job_id}/clone`.

    Args:
        pipelines: by registered name; None accepts any.
    """

    def __init__(
        self,
        db: DBInterface,
        intake: Intake,
        quota: Quota,
        pipelines: Mapping[str, Registration] | None,
    ) -> None:
        self._db = db
        self._quota = quota
        self._intake = intake
        self._pipelines = pipelines

    def add_to(self, router: APIRouter) -> None:
        """Declare the route."""
        router.add_api_route(
            "/jobs/{job_id}/clone",
            self.clone_post,
            methods=["POST"],
            status_code=HTTPStatus.ACCEPTED,
            response_model=EnqueueResponse,
            summary="Submit a job like another one",
            tags=["jobs"],
            responses={
                202: {"description": "The new job is stored.", **SUBMITTED},
                **problems(400, 404, 408, 410, 413, 415, 422, 429, 503),
            },
            openapi_extra={"parameters": [KEY_PARAMETER]},
        )

    async def clone_post(
        self,
        job_id: str,
        response: Response,
        http: Request,
        request: CloneRequest | None = None,
    ) -> EnqueueResponse:
        """Store a new job with everything of another one that the body does not change.

        The other job may be in any state and stays as it is. With `from_stage` the new one takes
        over what the other has finished up to that stage, where the pipeline can do so.
        """
        request = request or CloneRequest()
        key = key_of(http)
        job = await self._db.get_job(job_id)
        options = self._intake.options(
            request.options_like(job),
            # What the clone is made of; the other job's payload does not change.
            [job.id, request.model_dump(mode="json", exclude_unset=True)],
            submitter=submitter_of(http),
            key=key,
        )
        if request.from_stage is not None:
            await self._check_stage(job.id, options.pipeline or job.pipeline, request.from_stage)
        payload = await self._payload(job.id, request)
        if '"dataset"' in payload:
            # Parsing a payload of any size stays off the event loop.
            parsed = await asyncio.to_thread(json.loads, payload)
            options = self._intake.with_dataset(options, parsed)
        room = await self._quota.admit(http, 1, len(payload), [key])
        with unknown_dataset():
            clone_id = await self._db.insert_pending_job(payload, options)
        response.headers.update(room)
        if key is not None and clone_id != options.job_id:
            response.headers[REPLAYED_HEADER] = "true"
        response.headers["Location"] = beside(http, f"/jobs/{clone_id}")
        response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
        return EnqueueResponse(id=clone_id)

    async def _check_stage(self, job_id: str, pipeline: str, stage: str) -> None:
        if self._pipelines is not None and not declares(self._pipelines[pipeline], START_FROM):
            raise _refused(f"pipeline {pipeline!r} takes no {START_FROM!r} in its payload")
        kept = await self._db.list_checkpoint_stages(job_id)
        if stage not in kept:
            known = ", ".join(kept[:50]) or "none"
            raise _refused(f"job {job_id} has no checkpoint of {stage!r}; it has: {known}")

    async def _payload(self, job_id: str, request: CloneRequest) -> str:
        """The new job's payload as JSON text."""
        start = None
        if request.from_stage is not None:
            start = {"job": job_id, "stage": request.from_stage}
        # The stored one goes over as it is where nothing in it changes.
        stored = "{}" if request.has_payload else await self._db.get_payload(job_id)
        if request.has_payload or request.payload_patch is not None or start is not None:
            # Of any size: parsing, patching and checking stay off the event loop.
            if len(stored) < OFF_LOOP_BYTES and not request.has_payload:
                return _changed(stored, request, start)
            return await asyncio.to_thread(_changed, stored, request, start)
        return stored


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396: what is null in the patch goes, objects are merged, the rest is replaced."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def _changed(stored: str, request: CloneRequest, start: dict[str, str] | None) -> str:
    field = "payload" if request.has_payload else "payload_patch"
    try:
        # First of all: what is nested too deeply could not be merged either.
        check_storable(request.payload_patch)
        payload = request.payload if request.has_payload else json.loads(stored)
        payload = merge_patch(payload, request.payload_patch or {})
        if start is not None:
            payload = {**payload, START_FROM: start}
        return dump_storable(payload, "payload", MAX_PAYLOAD_BYTES)
    except InvalidJsonError as error:
        raise InvalidJsonError(f"/{field}{error.pointer}", error.reason) from None


def _refused(reason: str) -> Problem:
    return Problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "no-such-stage",
        reason,
        errors=[("/from_stage", reason)],
    )
