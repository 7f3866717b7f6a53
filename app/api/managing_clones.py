"""New jobs from old ones: the same work again, with something changed."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, TypeVar

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
from app.db.ids import as_uuid
from app.db.interface import DBInterface
from app.domain.errors import JobNotFoundError, UnknownPipelineError
from app.domain.jobs import MAX_PAYLOAD_BYTES, JobOptions, Registration
from app.domain.json_values import check_depth, dump_field
from app.domain.submissions import fingerprint

START_FROM = "start_from"
# Of any size, and compared as they come: pydantic's copies of them would be made in one go.
_CONTENT = frozenset({"payload", "payload_patch", "metadata"})

_Answer = TypeVar("_Answer")


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
        size = len(await http.body())
        asked = await _sized(size, lambda: _asked(job_id, request))
        key = key_of(http)
        try:
            clone_id, is_new = await self._clone(job_id, request, http, response, asked, key)
        except (JobNotFoundError, UnknownPipelineError, Problem):
            # What a clone is made from may change or go; once made it stays the answer to its key.
            found = key and await self._db.find_submission(submitter_of(http), key, asked)
            if not found:
                raise
            clone_id, is_new = found, False
        if not is_new:
            response.headers[REPLAYED_HEADER] = "true"
        response.headers["Location"] = beside(http, f"/jobs/{clone_id}")
        response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
        return EnqueueResponse(id=clone_id)

    async def _clone(
        self,
        job_id: str,
        request: CloneRequest,
        http: Request,
        response: Response,
        asked: bytes,
        key: str | None,
    ) -> tuple[str, bool]:
        """The clone's id, and whether it was made just now."""
        job = await self._db.get_job(job_id)
        size = len(await http.body())
        options = self._intake.options(
            request.options_like(job), None, submitter=submitter_of(http), key=key
        )
        if key is not None:
            options = replace(options, fingerprint=asked)
        if request.from_stage is not None:
            await self._check_stage(job.id, options.pipeline or job.pipeline, request.from_stage)
        payload = await self._payload(job.id, request, size)
        if '"dataset"' in payload:
            parsed = await _sized(len(payload), lambda: json.loads(payload))
            options = self._intake.with_dataset(options, parsed)
        room = await self._quota.admit(http, 1, len(payload), [key])
        with unknown_dataset():
            clone_id = await self._db.insert_pending_job(payload, options)
        response.headers.update(room)
        return clone_id, key is None or clone_id == options.job_id

    async def _check_stage(self, job_id: str, pipeline: str, stage: str) -> None:
        if self._pipelines is not None and not declares(self._pipelines[pipeline], START_FROM):
            raise _refused(f"pipeline {pipeline!r} takes no {START_FROM!r} in its payload")
        kept = await self._db.list_checkpoint_stages(job_id)
        if stage not in kept:
            known = ", ".join(kept[:50]) or "none"
            raise _refused(f"job {job_id} has no checkpoint of {stage!r}; it has: {known}")

    async def _payload(self, job_id: str, request: CloneRequest, size: int) -> str:
        """The new job's payload as JSON text; the request has `size` bytes."""
        start = None
        if request.from_stage is not None:
            start = {"job": job_id, "stage": request.from_stage}
        # The stored one goes over as it is where nothing in it changes.
        stored = "{}" if request.has_payload else await self._db.get_payload(job_id)
        if request.has_payload or request.payload_patch is not None or start is not None:
            return await _sized(size + len(stored), lambda: _changed(stored, request, start))
        return stored


def _asked(job_id: str, request: CloneRequest) -> bytes:
    """The fingerprint of what is asked for: nothing in it is the other job's, which may change."""
    content = {name: getattr(request, name) for name in request.model_fields_set & _CONTENT}
    for name, value in content.items():
        check_depth(value, name)
    said = request.model_dump(mode="json", exclude_unset=True, exclude=set(_CONTENT))
    return fingerprint([str(as_uuid(job_id)), said | content], JobOptions())


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
    payload = request.payload if request.has_payload else json.loads(stored)
    payload = merge_patch(payload, request.payload_patch or {})
    if start is not None:
        payload = {**payload, START_FROM: start}
    return dump_field(payload, field, MAX_PAYLOAD_BYTES)


async def _sized(size: int, work: Callable[[], _Answer]) -> _Answer:
    """What `work` on so many bytes or characters gives; much of it stays off the event loop."""
    return work() if size < OFF_LOOP_BYTES else await asyncio.to_thread(work)


def _refused(reason: str) -> Problem:
    return Problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "no-such-stage",
        reason,
        errors=[("/from_stage", reason)],
    )
