"""Submitting many jobs at once, and asking for them as one.

Rows are parsed one by one in a thread: nothing is kept of a row but what goes to the store, and
the event loop gets its turns in between.
"""

import asyncio
import io
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

from fastapi import Response
from fastapi.routing import APIRouter
from pydantic import ValidationError

from app.api.intake import REPLAYED_HEADER, Intake, key_of, submitter_of
from app.api.openapi import headers, problems
from app.api.problems import MAX_TOLD_ERRORS, RETRY_AFTER_SECONDS, Problem, pointer_to
from app.api.requests import BoundedRequest, check_fields, media_type, unparsable
from app.api.security_quota import Quota
from app.api.submitting import KEY_PARAMETER, SUBMITTED
from app.api.submitting_schemas import (
    BatchReceiptResponse,
    BatchResponse,
    BatchRow,
    BatchRowResponse,
)
from app.api.versions import beside
from app.db.interface import DBInterface
from app.domain.errors import (
    DatasetNotFoundError,
    IdempotencyKeyReusedError,
    InvalidJsonError,
    TooLargeError,
    UnknownPipelineError,
)
from app.domain.jobs import JobStatus
from app.domain.submissions import (
    MAX_BATCH_BYTES,
    MAX_BATCH_ROWS,
    Submission,
    common_fingerprint,
    part_key,
)

LINES: Final = frozenset({"application/x-ndjson", "application/jsonl"})

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_BODY: Final[dict[str, Any]] = {
    "required": True,
    "description": f"1 to {MAX_BATCH_ROWS} jobs, {MAX_BATCH_BYTES // 2**20} MiB in all.",
    "content": {
        "application/json": {
            "schema": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_BATCH_ROWS,
                "items": BatchRow.model_json_schema(),
            },
            "example": [
                {"custom_id": "row-1", "payload": {"n": 1}},
                {"custom_id": "row-2", "payload": {"n": 2}, "priority": 5},
            ],
        },
        **{
            lines: {
                "schema": {"type": "string", "description": "One such job on each line."},
                "example": '{"custom_id":"row-1","payload":{"n":1}}\n',
            }
            for lines in sorted(LINES)
        },
    },
}


@dataclass(frozen=True, slots=True)
class _Row:
    submission: Submission
    custom_id: str | None


class BatchRoutes:
    """Routes about jobs that were submitted together."""

    def __init__(self, db: DBInterface, intake: Intake, quota: Quota) -> None:
        self._db = db
        self._intake = intake
        self._quota = quota

    def add_to(self, router: APIRouter) -> None:
        """Declare the routes."""
        add = router.add_api_route
        add(
            "/jobs/batch",
            self.batch_post,
            methods=["POST"],
            status_code=HTTPStatus.ACCEPTED,
            response_model=BatchReceiptResponse,
            response_model_exclude_unset=True,
            summary="Submit many jobs, all or none",
            tags=["jobs"],
            responses={202: SUBMITTED, **problems(400, 408, 413, 415, 422, 429, 503)},
            openapi_extra={"parameters": [KEY_PARAMETER], "requestBody": _BODY},
        )
        add(
            "/batches/{batch_id}",
            self.get_batch,
            methods=["GET"],
            response_model=BatchResponse,
            summary="How far a batch is",
            tags=["jobs"],
            responses={
                200: {"headers": headers(Retry_After="While some of its jobs have not ended.")},
                **problems(404, 503),
            },
        )

    async def batch_post(self, response: Response, http: BoundedRequest) -> BatchReceiptResponse:
        """Store all jobs of a JSON array or of JSON lines in one transaction.

        One row that cannot be stored refuses them all; pointers name it by its index.
        """
        kind = media_type(http)
        if kind not in LINES and kind != "application/json":
            raise Problem(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                "not-json",
                "send a JSON array as application/json, or a job a line as application/x-ndjson",
            )
        key = key_of(http)
        submitter = submitter_of(http)
        body = await http.read(MAX_BATCH_BYTES)
        rows = await asyncio.to_thread(
            self._read, body, is_lines=kind in LINES, submitter=submitter, key=key
        )
        keys = [row.submission.options.idempotency_key for row in rows]
        room = await self._quota.admit(http, len(rows), len(body), keys)
        try:
            receipt = await self._db.insert_pending_jobs([row.submission for row in rows], key=key)
        except DatasetNotFoundError as error:
            raise _refused(
                [
                    (f"/{index}/payload/dataset/id", str(error))
                    for index, row in enumerate(rows)
                    if row.submission.options.dataset_id == error.dataset_id
                ]
            ) from None
        except IdempotencyKeyReusedError as error:
            if key is not None:
                raise IdempotencyKeyReusedError(key, error.job_id) from None
            raise _reused(error) from None
        response.headers.update(room)
        if len(receipt.replayed) == len(rows):
            response.headers[REPLAYED_HEADER] = "true"
        if receipt.id is not None:
            response.headers["Location"] = beside(http, f"/batches/{receipt.id}")
        response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
        return BatchReceiptResponse(
            batch_id=receipt.id,
            jobs=[
                _answer(index, row, job_id, is_replayed=index in receipt.replayed)
                for index, (row, job_id) in enumerate(zip(rows, receipt.job_ids, strict=True))
            ],
        )

    async def get_batch(self, batch_id: str, response: Response) -> BatchResponse:
        """How many of its jobs are in which status; done when all have ended."""
        batch = await self._db.get_batch(batch_id)
        if not batch.is_done:
            response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
        return BatchResponse.of(batch)

    def _read(self, body: bytes, *, is_lines: bool, submitter: str, key: str | None) -> list[_Row]:
        """All rows, or one problem that names what is wrong with any of them."""
        rows: list[_Row] = []
        errors: list[tuple[str, str]] = []
        for index, value in enumerate(_lines(body) if is_lines else _elements(body)):
            if index == MAX_BATCH_ROWS:
                errors.insert(0, (f"/{index}", f"more than {MAX_BATCH_ROWS} rows"))
                break
            # Lets go of the interpreter: the event loop then waits 0.25 ms for its turn instead of
            # 8 ms (medians, 20 MB in 950 rows).
            time.sleep(0)
            check_fields(value, f"/{index}")
            try:
                rows.append(self._row(value, submitter, key))
            except ValidationError as error:
                errors += [
                    (pointer_to((index, *item["loc"])), str(item["msg"]))
                    for item in error.errors(include_url=False, include_input=False)
                ]
            except InvalidJsonError as error:
                errors.append((f"/{index}{error.pointer}", error.reason))
            except UnknownPipelineError as error:
                errors.append((f"/{index}/pipeline", str(error)))
            except TooLargeError as error:
                what = f"{error.what} of row {index}"
                raise TooLargeError(what, error.size_bytes, error.limit_bytes) from None
            if len(errors) >= MAX_TOLD_ERRORS:
                break
        if not rows and not errors:
            errors.append(("", "no rows"))
        if errors:
            raise _refused(errors)
        return rows if key is None else _under_one_key(rows, key)

    def _row(self, value: Any, submitter: str, key: str | None) -> _Row:
        row = BatchRow.model_validate(value)
        if key is not None and row.idempotency_key is not None:
            raise InvalidJsonError("/idempotency_key", "the request has a key for all its rows")
        submission = self._intake.submission(
            row, submitter=submitter, key=row.idempotency_key or key
        )
        return _Row(submission, row.custom_id)


def _under_one_key(rows: list[_Row], key: str) -> list[_Row]:
    """The rows with a key each, derived from the request's, that are good for all of them only."""
    common = common_fingerprint([row.submission.options.fingerprint or b"" for row in rows])
    return [
        replace(
            row,
            submission=replace(
                row.submission,
                options=replace(
                    row.submission.options,
                    idempotency_key=part_key(key, index),
                    fingerprint=common,
                ),
            ),
        )
        for index, row in enumerate(rows)
    ]


def _elements(body: bytes) -> Iterator[Any]:
    """The elements of a JSON array, each parsed when it is asked for."""
    with unparsable():
        text = body.decode(json.detect_encoding(body), "surrogatepass")
    at = _after_space(text, 0)
    if text[at : at + 1] != "[":
        raise _refused([("", "send an array of jobs")])
    at = _after_space(text, at + 1)
    index = 0
    parse = json.JSONDecoder().raw_decode
    with unparsable(lambda: f"/{index}"):
        if text[at : at + 1] == "]":
            end = at
        else:
            while True:
                value, at = parse(text, at)
                yield value
                index += 1
                end = at = _after_space(text, at)
                if text[at : at + 1] != ",":
                    break
                at = _after_space(text, at + 1)
        if text[end : end + 1] != "]":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, end)
        if (at := _after_space(text, end + 1)) != len(text):
            raise json.JSONDecodeError("Extra data", text, at)


def _lines(body: bytes) -> Iterator[Any]:
    """The values of JSON lines, each parsed when it is asked for; blank lines do not count."""
    index = 0
    with unparsable(lambda: f"/{index}"):
        for line in io.BytesIO(body):
            if line.strip():
                yield json.loads(line)
                index += 1


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _answer(index: int, row: _Row, job_id: str, *, is_replayed: bool) -> BatchRowResponse:
    answer: dict[str, Any] = {"index": index, "id": job_id, "status": JobStatus.PENDING}
    # What is not set is not sent.
    if row.custom_id is not None:
        answer["custom_id"] = row.custom_id
    if is_replayed:
        answer["replayed"] = True
    return BatchRowResponse(**answer)


def _refused(errors: list[tuple[str, str]]) -> Problem:
    detail = "; ".join(f"{at or '/'}: {what}" for at, what in errors[:3])
    return Problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "invalid-input",
        detail,
        errors=errors[:MAX_TOLD_ERRORS],
    )


def _reused(error: IdempotencyKeyReusedError) -> Problem:
    return Problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "idempotency-key-reused",
        str(error),
        errors=[(f"/{error.index}/idempotency_key", str(error))],
    )
