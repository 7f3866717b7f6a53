"""Errors as `application/problem+json` (RFC 9457), the framework's own included."""

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from app.api.versions import allowed_methods
from app.domain.errors import (
    BatchNotFoundError,
    BatchPartlyDeletedError,
    DatabaseUnavailableError,
    IdempotencyKeyReusedError,
    IllegalTransitionError,
    InvalidJsonError,
    JobDeletedError,
    JobNotFoundError,
    NodeGoneError,
    NodeNotFoundError,
    QuotaExceededError,
    SearchTooLongError,
    TooLargeError,
    UnknownPipelineError,
)
from app.telemetry import MAY_REPEAT

# More mistakes than these in one request are not told.
MAX_TOLD_ERRORS: Final = 100
MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_SECONDS: Final = 2
QUOTA_RETRY_SECONDS: Final = 5

_logger: Final = logging.getLogger("haulage.api")


class Problem(HTTPException):
    """An answer other than success.

    Args:
        kind: last part of the problem's type, stable for clients.
        errors: pairs of JSON pointer and message, for bad input.
    """

    def __init__(
        self,
        status: HTTPStatus,
        kind: str,
        detail: str,
        *,
        errors: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.kind = kind
        self.errors = errors
        self.members = members


def install_problem_handlers(app: FastAPI) -> None:
    """Answer every error of `app` as a problem."""
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(InvalidJsonError, _on_invalid_json)
    app.add_exception_handler(TooLargeError, _on_too_large)
    app.add_exception_handler(JobNotFoundError, _on_job_not_found)
    app.add_exception_handler(BatchNotFoundError, _on_batch_not_found)
    app.add_exception_handler(IdempotencyKeyReusedError, _on_key_reused)
    app.add_exception_handler(BatchPartlyDeletedError, _on_batch_partly_deleted)
    app.add_exception_handler(JobDeletedError, _on_job_deleted)
    app.add_exception_handler(NodeNotFoundError, _on_node_not_found)
    app.add_exception_handler(NodeGoneError, _on_node_gone)
    app.add_exception_handler(QuotaExceededError, _on_quota_exceeded)
    app.add_exception_handler(IllegalTransitionError, _on_illegal_transition)
    app.add_exception_handler(UnknownPipelineError, _on_unknown_pipeline)
    app.add_exception_handler(SearchTooLongError, _on_search_too_long)
    app.add_exception_handler(DatabaseUnavailableError, _on_database_unavailable)
    app.add_exception_handler(Exception, on_unexpected)


def answer(request: Request, problem: Problem) -> JSONResponse:
    """The response that tells of `problem`."""
    body: dict[str, Any] = {
        "type": f"urn:haulage:problem:{problem.kind}",
        "title": HTTPStatus(problem.status_code).phrase,
        "status": problem.status_code,
        "detail": problem.detail,
        "instance": request.url.path,
        **problem.members,
    }
    if problem.errors:
        body["errors"] = [{"pointer": at, "detail": what} for at, what in problem.errors]
    return JSONResponse(body, problem.status_code, problem.headers, media_type=MEDIA_TYPE)


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, Problem):
        assert isinstance(error, HTTPException)  # noqa: S101  as registered
        status = HTTPStatus(error.status_code)
        kind = status.phrase.lower().replace(" ", "-")
        headers = dict(error.headers or {})
        if status is HTTPStatus.METHOD_NOT_ALLOWED and (methods := allowed_methods(request)):
            headers["Allow"] = ", ".join(methods)
        error = Problem(status, kind, str(error.detail), headers=headers)
    return answer(request, error)


async def _on_validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101  as registered
    places = [
        (pointer_to(item["loc"]), str(item["msg"])) for item in error.errors()[:MAX_TOLD_ERRORS]
    ]
    detail = "; ".join(f"{at or '/'}: {what}" for at, what in places[:3])
    problem = Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-input", detail, errors=places)
    return answer(request, problem)


async def _on_invalid_json(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, InvalidJsonError)  # noqa: S101  as registered
    place = (error.pointer, error.reason)
    problem = Problem(
        HTTPStatus.UNPROCESSABLE_ENTITY, "unstorable-json", str(error), errors=[place]
    )
    return answer(request, problem)


async def _on_too_large(request: Request, error: Exception) -> JSONResponse:
    return answer(request, Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too-large", str(error)))


async def _on_job_not_found(request: Request, error: Exception) -> JSONResponse:
    return answer(request, Problem(HTTPStatus.NOT_FOUND, "no-such-job", str(error)))


async def _on_batch_not_found(request: Request, error: Exception) -> JSONResponse:
    return answer(request, Problem(HTTPStatus.NOT_FOUND, "no-such-batch", str(error)))


async def _on_key_reused(request: Request, error: Exception) -> JSONResponse:
    problem = Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "idempotency-key-reused", str(error))
    return answer(request, problem)


async def _on_batch_partly_deleted(request: Request, error: Exception) -> JSONResponse:
    problem = Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "batch-partly-deleted", str(error))
    return answer(request, problem)


async def _on_job_deleted(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, JobDeletedError)  # noqa: S101  as registered
    detail = f"job {error.job_id} was deleted, with everything that belonged to it"
    return answer(request, Problem(HTTPStatus.GONE, "job-deleted", detail))


async def _on_node_not_found(request: Request, error: Exception) -> JSONResponse:
    return answer(request, Problem(HTTPStatus.NOT_FOUND, "no-such-node", str(error)))


async def _on_node_gone(request: Request, error: Exception) -> JSONResponse:
    return answer(request, Problem(HTTPStatus.CONFLICT, "node-gone", str(error)))


async def _on_quota_exceeded(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, QuotaExceededError)  # noqa: S101  as registered
    problem = Problem(
        HTTPStatus.TOO_MANY_REQUESTS,
        "quota-exceeded",
        str(error),
        headers={"Retry-After": str(QUOTA_RETRY_SECONDS)},
        violated_policies=error.violated,
    )
    return answer(request, problem)


async def _on_illegal_transition(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, IllegalTransitionError)  # noqa: S101  as registered
    problem = Problem(HTTPStatus.CONFLICT, "wrong-status", str(error), job_status=error.status)
    return answer(request, problem)


async def _on_unknown_pipeline(request: Request, error: Exception) -> JSONResponse:
    place = ("/pipeline", str(error))
    problem = Problem(
        HTTPStatus.UNPROCESSABLE_ENTITY, "unknown-pipeline", str(error), errors=[place]
    )
    return answer(request, problem)


async def _on_search_too_long(request: Request, error: Exception) -> JSONResponse:
    # Without Retry-After: the same search would be ended again.
    problem = Problem(HTTPStatus.SERVICE_UNAVAILABLE, "search-too-long", str(error))
    return answer(request, problem)


async def _on_database_unavailable(request: Request, error: Exception) -> JSONResponse:
    _logger.warning("database unavailable: %s", error, extra=MAY_REPEAT)
    problem = Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "database-unavailable",
        "the database cannot be reached; nothing can be said about this request",
        headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
    )
    return answer(request, problem)


async def on_unexpected(request: Request, error: Exception) -> JSONResponse:
    """An error of ours: logged with its traceback, told without it."""
    _logger.error("unexpected error on %s %s", request.method, request.url.path, exc_info=error)
    problem = Problem(
        HTTPStatus.INTERNAL_SERVER_ERROR, "internal-error", "an unexpected error; it was logged"
    )
    return answer(request, problem)


def pointer_to(location: Sequence[int | str]) -> str:
    """The JSON pointer of a place that pydantic or FastAPI names."""
    # FastAPI's first part says where in the request ("body"), the rest is the path in it.
    parts = location[1:] if location and location[0] == "body" else location
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
