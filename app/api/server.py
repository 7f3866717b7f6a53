"""`WebServer`: the routes. Each handler validates, asks the database once and answers.

It must never compute, import a pipeline or touch a process.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Protocol

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute, APIRouter

from app import __version__
from app.api.ending import EndsInTime, OpenRequests
from app.api.health import HealthRoutes
from app.api.managing import ManageRoutes
from app.api.openapi import headers, install_openapi, problems
from app.api.problems import RETRY_AFTER_SECONDS, install_problem_handlers
from app.api.requests import OFF_LOOP_BYTES, BoundedRoute
from app.api.results import ResultRoutes
from app.api.schemas import (
    EnqueueRequest,
    EnqueueResponse,
    JobResponse,
)
from app.api.security import Access
from app.api.security_setup import Security
from app.api.versions import beside, include_in_both
from app.api.webhooks import WebhookRoutes
from app.db.interface import DBInterface
from app.domain.errors import InvalidJsonError, UnknownPipelineError
from app.domain.jobs import MAX_PAYLOAD_BYTES, Registration
from app.domain.json_values import dump_storable
from app.webhooks.addresses import AddressRules

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
        access: who may do what.
        webhook_rules: where webhooks may go.
        deliveries: of webhooks, run beside the API; None leaves them to other processes.
        on_stopped: called once in a thread after everything else has ended.
    """

    def __init__(
        self,
        db: DBInterface,
        queue_mgr: Scheduler,
        *,
        pipelines: Mapping[str, Registration] | None = None,
        default_pipeline: str | None = None,
        access: Access | None = None,
        webhook_rules: AddressRules | None = None,
        deliveries: Scheduler | None = None,
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
        self._webhook_rules = webhook_rules or AddressRules()
        self._deliveries = deliveries or NoScheduler()
        self._security = Security(db, access or Access())
        self._security.guard(self.app)
        self.app.add_middleware(EndsInTime, requests=self._open_requests)
        self._security.cover(self.app)
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
            at_end.push_async_callback(self._security.close)
            at_end.push_async_callback(self._queue_mgr.stop)
            await self._queue_mgr.start()
            at_end.push_async_callback(self._deliveries.stop)
            await self._deliveries.start()
            at_end.callback(self.refuse_traffic)
            self._is_ready = True
            yield

    def _add_routes(self) -> None:
        router = APIRouter(route_class=BoundedRoute)
        add = router.add_api_route
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
                **problems(400, 413, 415, 422, 429, 503),
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
        for area in (
            ResultRoutes(self._db),
            ManageRoutes(self._db),
            WebhookRoutes(self._db, self._webhook_rules),
            HealthRoutes(self._db, lambda: self._is_ready),
        ):
            area.add_to(router)
        include_in_both(self.app, router)

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
        response.headers.update(await self._security.quota.admit(http, 1, len(payload)))
        job_id = await self._db.insert_pending_job(payload, options)
        response.headers["Location"] = beside(http, f"/jobs/{job_id}")
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


async def _storable(payload: dict[str, Any], body_bytes: int) -> str:
    try:
        # A large payload takes tens of milliseconds to check and dump: not on the event loop.
        if body_bytes > OFF_LOOP_BYTES:
            return await asyncio.to_thread(dump_storable, payload, "payload", MAX_PAYLOAD_BYTES)
        return dump_storable(payload, "payload", MAX_PAYLOAD_BYTES)
    except InvalidJsonError as error:
        raise InvalidJsonError(f"/payload{error.pointer}", error.reason) from None


def _operation_id(route: APIRoute) -> str:
    return route.name
