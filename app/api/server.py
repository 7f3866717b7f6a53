"""`WebServer`: the routes. Each handler validates, asks the database once and answers.

It must never compute, import a pipeline or touch a process.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Any, Final, Protocol

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute

from app import __version__
from app.api.ending import EndsInTime, OpenRequests
from app.api.openapi import headers, install_openapi, problems
from app.api.problems import RETRY_AFTER_SECONDS, Problem, install_problem_handlers
from app.api.requests import OFF_LOOP_BYTES, BoundedRoute
from app.api.schemas import (
    EnqueueRequest,
    EnqueueResponse,
    HealthResponse,
    JobResponse,
    JobStateResponse,
)
from app.db.ids import as_uuid
from app.db.interface import DBInterface
from app.domain.errors import InvalidJsonError, UnknownPipelineError
from app.domain.jobs import MAX_PAYLOAD_BYTES, JobStatus, Registration
from app.domain.json_values import dump_storable

_DESCRIPTION: Final = """\
Haulage accepts long jobs, stores them in PostgreSQL and runs each in a process of its own.

`POST /enqueue` answers at once with an id; `GET /jobs/{id}` tells progress and milestones;
`GET /jobs/{id}/result` gives what the pipeline returned.
"""


class Scheduler(Protocol):
    """What the web server needs of a queue manager."""

    async def start(self) -> None:
        """Begin to claim and run jobs."""

    async def stop(self) -> None:
        """End everything that was started, within a bound."""


class NoScheduler:
    """For a process that only serves HTTP."""

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""


class WebServer:
    """The HTTP face of a database of jobs, with the scheduler that lives beside it.

    Args:
        pipelines: by registered name; None accepts any (nodes claim only what they know).
        default_pipeline: for requests that name none.
        on_stopped: called once in a thread after everything else has ended.
    """

    def __init__(
        self,
        db: DBInterface,
        queue_mgr: Scheduler,
        *,
        pipelines: Mapping[str, Registration] | None = None,
        default_pipeline: str | None = None,
        on_stopped: Callable[[], None] = lambda: None,
    ) -> None:
        self._db = db
        self._queue_mgr = queue_mgr
        self._pipelines = pipelines
        self._default_pipeline = default_pipeline
        self._on_stopped = on_stopped
        self._is_ready = False
        self._open_requests = OpenRequests()
        self.app = FastAPI(
            title="Haulage",
            version=__version__,
            description=_DESCRIPTION,
            lifespan=self._lifespan,
            generate_unique_id_function=_operation_id,
        )
        self.app.router.route_class = BoundedRoute
        self.app.add_middleware(EndsInTime, requests=self._open_requests)
        install_problem_handlers(self.app)
        self._add_routes()
        install_openapi(self.app)

    def refuse_traffic(self) -> None:
        """Turn /readyz to 503: the process is about to stop."""
        self._is_ready = False

    def end_requests(self) -> None:
        """Let no request hold up the end: those that still wait are told so (503)."""
        self._open_requests.end()

    @asynccontextmanager
    async def _lifespan(self, _app: FastAPI) -> AsyncGenerator[None, None]:
        async with AsyncExitStack() as at_end:
            # In this order backwards, whatever one of them does.
            at_end.push_async_callback(asyncio.to_thread, self._on_stopped)
            at_end.push_async_callback(self._db.close)
            await self._db.open()
            at_end.push_async_callback(self._queue_mgr.stop)
            await self._queue_mgr.start()
            at_end.callback(self.refuse_traffic)
            self._is_ready = True
            yield

    def _add_routes(self) -> None:
        add = self.app.add_api_route
        add(
            "/enqueue",
            self.enqueue_post,
            methods=["POST"],
            response_model=EnqueueResponse,
            summary="Submit a job",
            tags=["jobs"],
            responses={
                200: {
                    "headers": headers(
                        Location="Where to follow the job.",
                        Retry_After="Seconds after which asking for it makes sense.",
                    )
                },
                **problems(400, 413, 415, 422, 503),
            },
        )
        add(
            "/jobs/{job_id}",
            self.get_job,
            methods=["GET"],
            response_model=JobResponse,
            summary="Follow a job",
            tags=["jobs"],
            responses=problems(404, 503),
        )
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
                **problems(404, 409, 503),
            },
        )
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
                },
                **problems(404, 409, 503),
            },
        )
        add(
            "/jobs/{job_id}/retry",
            self.retry_post,
            methods=["POST"],
            response_model=JobStateResponse,
            summary="Run an ended job again",
            tags=["jobs"],
            responses=problems(404, 409, 503),
        )
        add(
            "/livez",
            self.livez,
            methods=["GET"],
            response_model=HealthResponse,
            summary="Is the process alive",
            tags=["health"],
        )
        add(
            "/readyz",
            self.readyz,
            methods=["GET"],
            response_model=HealthResponse,
            summary="May traffic come here",
            tags=["health"],
            responses=problems(503),
        )

    async def enqueue_post(
        self, request: EnqueueRequest, response: Response, http: Request
    ) -> EnqueueResponse:
        """Store a job durably and answer its id; the work itself starts in another process."""
        name = request.pipeline or self._default_pipeline
        if self._pipelines is not None and name is not None and name not in self._pipelines:
            raise UnknownPipelineError(name, tuple(sorted(self._pipelines)))
        payload = await _storable(request.payload, len(await http.body()))
        options = request.options()
        if self._pipelines is not None and name is not None:
            options = self._pipelines[name].complete(options)
        job_id = await self._db.insert_pending_job(payload, options)
        response.headers["Location"] = f"/jobs/{job_id}"
        response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
        return EnqueueResponse(id=job_id)

    async def get_job(self, job_id: str, response: Response) -> JobResponse:
        """The job's status, latest progress and milestones."""
        # In this order: whoever is told of a milestone is told of progress at least as far.
        milestones = await self._db.list_milestones(job_id)
        job = await self._db.get_job(job_id)
        if job.status.is_terminal:
            # Some may have come between the two looks; now there come no more.
            milestones = await self._db.list_milestones(job_id)
        else:
            response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
        return JobResponse.of(job, milestones)

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

    async def retry_post(self, job_id: str, response: Response) -> JobStateResponse:
        """Make an ended job pending again under its id, with a fresh budget of attempts.

        Attempts, milestones and logs so far stay. A failed or cancelled job goes on from its
        checkpoints; a completed one starts over.
        """
        await self._db.retry_job(job_id)
        job_id = _canonical(job_id)
        response.headers["Location"] = f"/jobs/{job_id}"
        return JobStateResponse(id=job_id, status=JobStatus.PENDING)

    async def livez(self) -> HealthResponse:
        """The event loop turns; the database is not asked."""
        return HealthResponse()

    async def readyz(self) -> HealthResponse:
        """The database answers and the process is not about to stop."""
        if not self._is_ready:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "not-ready", "starting or stopping")
        await self._db.ping()
        return HealthResponse()


async def _storable(payload: dict[str, Any], body_bytes: int) -> str:
    try:
        # A large payload takes tens of milliseconds to check and dump: not on the event loop.
        if body_bytes > OFF_LOOP_BYTES:
            return await asyncio.to_thread(dump_storable, payload, "payload", MAX_PAYLOAD_BYTES)
        return dump_storable(payload, "payload", MAX_PAYLOAD_BYTES)
    except InvalidJsonError as error:
        raise InvalidJsonError(f"/payload{error.pointer}", error.reason) from None


def _canonical(job_id: str) -> str:
    """The id as we write it, of one that the store has understood."""
    return str(as_uuid(job_id) or job_id)


def _operation_id(route: APIRoute) -> str:
    return route.name
