"""Queues: what waits in them, and holding them up."""

from typing import Annotated

from fastapi import Path, Query, Request, Response
from fastapi.routing import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from app.api.links import NEXT_PAGE, link_to_next, next_page
from app.api.openapi import headers, problems
from app.db.interface import DBInterface
from app.domain.managing import DEFAULT_PAGE, MAX_PAGE

QueueName = Annotated[str, Path(min_length=1, max_length=255)]


class QueueResponse(BaseModel):
    """A queue with its jobs that have not ended."""

    model_config = ConfigDict(
        from_attributes=True,
        json_schema_extra={
            "examples": [
                {
                    "name": "default",
                    "is_paused": False,
                    "pending": 12,
                    "scheduled": 2,
                    "running": 4,
                    "oldest_pending_seconds": 3.5,
                    "is_exact": True,
                }
            ]
        },
    )

    name: str
    is_paused: bool
    pending: int = Field(description="Jobs that wait, scheduled ones included.")
    scheduled: int = Field(description="Of these, those that are not due yet.")
    running: int
    oldest_pending_seconds: float | None = Field(
        description="Since the job became due that waits longest; null where none is due."
    )
    is_exact: bool = Field(
        description="Whether every job that waits was looked at. Otherwise these numbers are of "
        "the 10,000 that come first, and are at least so much."
    )


class QueueListResponse(BaseModel):
    """A page of the queues that have jobs to do or were paused once, by name."""

    items: list[QueueResponse]
    next: str | None = Field(
        description="Where the next page is; null where nothing is left.",
        examples=["/queues?after=default"],
    )


class QueueStateResponse(BaseModel):
    """Whether jobs of the queue are started."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "default", "is_paused": True}]}
    )

    name: str
    is_paused: bool


class QueueRoutes:
    """Routes below `/queues`."""

    def __init__(self, db: DBInterface) -> None:
        self._db = db

    def add_to(self, router: APIRouter) -> None:
        """Declare the routes."""
        add = router.add_api_route
        add(
            "/queues",
            self.list_queues,
            methods=["GET"],
            response_model=QueueListResponse,
            summary="Queues and what waits in them",
            tags=["queues"],
            responses={200: {"headers": headers(Link=NEXT_PAGE)}, **problems(422, 503)},
        )
        # Names may hold slashes.
        add(
            "/queues/{name:path}/pause",
            self.pause_queue,
            methods=["POST"],
            response_model=QueueStateResponse,
            summary="Start no jobs of a queue",
            tags=["queues"],
            responses=problems(422, 503),
        )
        add(
            "/queues/{name:path}/resume",
            self.resume_queue,
            methods=["POST"],
            response_model=QueueStateResponse,
            summary="Start jobs of a queue again",
            tags=["queues"],
            responses=problems(422, 503),
        )

    async def list_queues(
        self,
        http: Request,
        response: Response,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = DEFAULT_PAGE,
        after: Annotated[
            str, Query(max_length=255, description="Name of the last one on the page before.")
        ] = "",
    ) -> QueueListResponse:
        """Counts of jobs that wait and run; ended jobs are not looked at.

        Of the jobs that wait in a queue no more than 10,000 are counted: `is_exact` says so.
        """
        found = await self._db.list_queues(limit + 1, after)
        queues = [QueueResponse.model_validate(each) for each in found[:limit]]
        more = next_page(http, after=queues[-1].name) if len(found) > limit else None
        link_to_next(response, more)
        return QueueListResponse(items=queues, next=more)

    async def pause_queue(self, name: QueueName) -> QueueStateResponse:
        """Jobs are still accepted and wait; those that run go on. Twice is harmless."""
        await self._db.pause_queue(name)
        return QueueStateResponse(name=name, is_paused=True)

    async def resume_queue(self, name: QueueName) -> QueueStateResponse:
        """Its jobs are started at once where a node has room. Twice is harmless."""
        await self._db.resume_queue(name)
        return QueueStateResponse(name=name, is_paused=False)
