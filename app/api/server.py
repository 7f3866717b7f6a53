"""`WebServer`: the routes. Each handler validates, asks the database once and answers.

It must never compute, import a pipeline or touch a process.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Annotated, Final, Protocol

from fastapi import Depends, FastAPI, Header, Request, Response
from fastapi.routing import APIRoute, APIRouter
from fastapi_offline import FastAPIOffline

from app import __version__
from app.api.batches import BatchRoutes
from app.api.datasets import DatasetRoutes
from app.api.ending import EndsInTime, OpenRequests
from app.api.events import EventRoutes
from app.api.following import Followers
from app.api.health import HealthRoutes
from app.api.history import HistoryRoutes
from app.api.intake import Intake
from app.api.managing import ManageRoutes
from app.api.managing_clones import CloneRoutes
from app.api.managing_lists import ListRoutes
from app.api.nodes import NodeRoutes
from app.api.openapi import headers, install_openapi, problems
from app.api.pipelines import PipelineRoutes
from app.api.problems import install_problem_handlers
from app.api.queues import QueueRoutes
from app.api.receiving import MAX_HELD_BYTES
from app.api.requests import BoundedRoute
from app.api.results import ResultRoutes
from app.api.room import Room
from app.api.schemas import (
    EnqueueRequest,
    EnqueueResponse,
    JobResponse,
)
from app.api.security import Access
from app.api.security_setup import Security
from app.api.submitting import KEY_PARAMETER, SUBMITTED, SubmitRoutes
from app.api.versions import include_in_both
from app.api.waiting import Wait, etag_of, is_known, retry_after_seconds, unless_gone
from app.api.webhooks import WebhookRoutes
from app.db.interface import DBFactory, DBInterface
from app.domain.health import VitalSigns
from app.domain.jobs import Registration
from app.loops import Companion
from app.webhooks.addresses import AddressRules

_DESCRIPTION: Final = """\
Haulage accepts long jobs, stores them in PostgreSQL and runs each in a process of its own.

`POST /enqueue` answers at once with an id; `GET /jobs/{id}` tells progress and milestones, and
waits for the end with `?wait=30`; `GET /jobs/{id}/events` streams them; `GET /jobs/{id}/result`
gives what the pipeline returned. For themes in a file of answers: `POST /datasets`, then
`POST /jobs` with `{"payload": {"dataset": {"id": "..."}, "text_column": "..."}}`, then
`GET /jobs/{id}/result/themes`.

Every route is also there under `/v1`. Errors are problem documents (RFC 9457).
"""


class Scheduler(Protocol):
    """What the web server needs of a queue manager."""

    async def start(self) -> None:
        """Begin to claim and run jobs."""

    async def stop(self) -> None:
        """End everything that was started, within a bound."""


class NoScheduler:
    """For a process that only serves HTTP.

    Args:
        companions: work that a scheduler would have beside it, started and stopped with the server.
    """

    def __init__(self, companions: Sequence[Companion] = ()) -> None:
        self._companions = companions

    async def start(self) -> None:
        """Start the companions."""
        for companion in self._companions:
            companion.start()

    async def stop(self) -> None:
        """Stop the companions."""
        for companion in self._companions:
            await companion.stop()
            await companion.close()


class WebServer:
    """The HTTP face of a database of jobs, with the scheduler that lives beside it.

    Args:
        pipelines: by registered name; None accepts any (nodes claim only what they know).
        default_pipeline: for requests that name none.
        access: who may do what.
        webhook_rules: where webhooks may go.
        deliveries: of webhooks, run beside the API; None leaves them to other processes.
        on_stopped: called once in a thread after everything else has ended.
        vital_signs: of the scheduler, None where there is none.
        schema_revision: that the database has to have, None where any will do.
        db_factory: picklable; builds the adapter of each short-lived process that reads a file or
            writes an export. Without it they are read and written in this process.
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
        vital_signs: Callable[[], VitalSigns] | None = None,
        schema_revision: str | None = None,
        db_factory: DBFactory | None = None,
    ) -> None:
        self._db = db
        self._queue_mgr = queue_mgr
        self._pipelines = pipelines
        self._default_pipeline = default_pipeline
        self._intake = Intake(pipelines, default_pipeline)
        self._security = Security(db, access or Access())
        self._submitting = SubmitRoutes(db, self._intake, self._security.quota)
        self._on_stopped = on_stopped
        self._vital_signs = vital_signs
        self._schema_revision = schema_revision
        self._has_started = self._is_ready = False
        self._db_factory = db_factory
        self._open_requests = OpenRequests()
        self._followers = Followers(db)
        # FastAPI's own page of documentation fetches its scripts from elsewhere.
        self.app = FastAPIOffline(
            redoc_url=None,
            title="Haulage",
            version=__version__,
            description=_DESCRIPTION,
            lifespan=self._lifespan,
            generate_unique_id_function=_operation_id,
        )
        self.app.state.body_room = Room(MAX_HELD_BYTES, "bodies of requests")
        self._webhook_rules = webhook_rules or AddressRules()
        self._deliveries = deliveries or NoScheduler()
        self._security.guard(self.app)
        self.app.add_middleware(EndsInTime, requests=self._open_requests)
        self._security.cover(self.app)
        install_problem_handlers(self.app)
        self._add_routes()
        install_openapi(self.app)

    def refuse_traffic(self) -> None:
        """The process is about to stop: turn /readyz to 503, let those go who follow a job."""
        self._is_ready = False
        self._followers.end()

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
            at_end.push_async_callback(self._followers.close)
            at_end.push_async_callback(self._security.close)
            at_end.push_async_callback(self._queue_mgr.stop)
            await self._queue_mgr.start()
            at_end.push_async_callback(self._deliveries.stop)
            await self._deliveries.start()
            at_end.callback(self.refuse_traffic)
            self._has_started = self._is_ready = True
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
            responses={200: SUBMITTED, **problems(400, 408, 413, 415, 422, 429, 503)},
            openapi_extra={"parameters": [KEY_PARAMETER]},
        )
        add(
            "/jobs/{job_id}",
            self.get_job,
            methods=["GET"],
            response_model=JobResponse,
            summary="Follow a job",
            tags=["jobs"],
            responses={
                200: {
                    "headers": headers(
                        ETag="The job's version, for If-None-Match.",
                        Retry_After="Seconds after which asking again makes sense.",
                        Preference_Applied="The wait that was preferred and granted.",
                    )
                },
                304: {"description": "The job has this version still."},
                **problems(404, 410, 422, 503),
            },
        )
        for area in (
            EventRoutes(self._db, self._followers),
            HistoryRoutes(self._db, self._followers),
            self._submitting,
            BatchRoutes(self._db, self._intake, self._security.quota),
            DatasetRoutes(self._db, self._security.quota, self._db_factory),
            ResultRoutes(self._db, self._db_factory),
            ManageRoutes(self._db, self._security.quota),
            HealthRoutes(
                self._db,
                has_started=lambda: self._has_started,
                is_ready=lambda: self._is_ready,
                vital_signs=self._vital_signs,
                wanted_revision=self._schema_revision,
            ),
            ListRoutes(self._db),
            CloneRoutes(self._db, self._intake, self._security.quota, self._pipelines),
            QueueRoutes(self._db),
            WebhookRoutes(self._db, self._webhook_rules),
            NodeRoutes(self._db),
            PipelineRoutes(self._pipelines, self._default_pipeline),
        ):
            area.add_to(router)
        include_in_both(self.app, router)

    async def enqueue_post(
        self, request: EnqueueRequest, response: Response, http: Request
    ) -> EnqueueResponse:
        """Store a job durably and answer its id; the work itself starts in another process."""
        return await self._submitting.submit(request, response, http)

    async def get_job(
        self,
        job_id: str,
        http: Request,
        response: Response,
        wait: Annotated[Wait, Depends()],
        if_none_match: Annotated[
            str | None, Header(description="An ETag of an earlier answer.")
        ] = None,
    ) -> JobResponse | Response:
        """The job's status, latest progress and milestones.

        With `wait` the answer comes when the job has ended or, with `If-None-Match`, when anything
        about it is new; after so many seconds at the latest.
        """
        job = await self._db.get_job(job_id)
        knows = is_known(job, if_none_match)
        if wait.seconds and not job.status.is_terminal and (knows or if_none_match is None):
            known = job.version if knows else None
            waiting = self._followers.wait_for_change(job.id, known, wait.seconds)
            await unless_gone(http, waiting)
            job = await self._db.get_job(job_id)
        response.headers["ETag"] = etag_of(job)
        # Caches have to ask; a browser would guess otherwise.
        response.headers["Cache-Control"] = "private, no-cache"
        if not job.status.is_terminal:
            response.headers["Retry-After"] = str(retry_after_seconds(job))
        if wait.applied is not None:
            response.headers["Preference-Applied"] = wait.applied
        if is_known(job, if_none_match):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=response.headers)
        milestones = await self._db.list_milestones(job_id)
        # As of the same instant as the rest, or the ETag would promise more than the answer holds.
        shown = [milestone for milestone in milestones if milestone.id <= job.last_event_id]
        return JobResponse.of(job, shown)


def _operation_id(route: APIRoute) -> str:
    return route.name
