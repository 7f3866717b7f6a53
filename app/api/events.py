"""Server-sent events about one job: its story so far, then what happens, then its end.

A stream that ends without `event: end` was broken off or told `event: closing`: its client connects
again with `Last-Event-ID` (browsers do so by themselves) and misses nothing.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import Header, Query, Response
from fastapi.routing import APIRouter
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic import BaseModel
from starlette.types import Message, Receive, Scope, Send

from app.api.following import (
    MAX_QUEUED,
    Follower,
    Followers,
    JobFollower,
    LogFollower,
)
from app.api.following_schemas import ClosingEvent, EndEvent, LogLineResponse, StatusEvent
from app.api.openapi import problems
from app.api.problems import RETRY_AFTER_SECONDS, Problem
from app.api.schemas import MilestoneResponse, ProgressResponse
from app.db.interface import DBInterface
from app.domain.following import MILESTONE_KIND, StoredEvent, StoredLine
from app.domain.jobs import Progress

# What a client waits before it connects again.
RETRY_MILLISECONDS: Final = 2_000
# Below what proxies grant an idle connection.
PING_SECONDS: Final = 15.0
# A client that takes nothing for so long is given up.
SEND_SECONDS: Final = 20.0
MAX_ID: Final = 2**63 - 1

_HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_logger: Final = logging.getLogger("haulage.api")


class FollowResponse(EventSourceResponse):
    """A stream that is followed by nobody any more once it has ended, however it ended."""

    def __init__(
        self, followers: Followers, follower: Follower, events: AsyncGenerator[bytes, None]
    ) -> None:
        super().__init__(events, headers=_HEADERS)
        self._events = events
        self._followers = followers
        self._follower = follower

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["method"] == "HEAD":
            # Its headers alone: there is no body that could come to an end.
            await self._events.aclose()
            start = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **start})
            await send({"type": "http.response.body", "body": b""})
            return

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SEND_SECONDS):
                await send(message)

        with self._followers.following(self._follower):
            try:
                await super().__call__(scope, receive, send_in_time)
            except TimeoutError:
                # The server closes the connection of an answer that was not completed.
                _logger.warning(
                    "a client that follows job %s took nothing for %g s and is given up",
                    self._follower.job_id,
                    SEND_SECONDS,
                )
            finally:
                await self._events.aclose()


class EventRoutes:
    """`/jobs/{job_id}/events`."""

    def __init__(self, db: DBInterface, followers: Followers) -> None:
        self._db = db
        self._followers = followers

    def add_to(self, router: APIRouter) -> None:
        """Declare the routes."""
        router.add_api_route(
            "/jobs/{job_id}/events",
            self.get_events,
            methods=["GET"],
            summary="Follow a job as server-sent events",
            tags=["jobs"],
            response_class=Response,
            responses={200: event_stream(_EXAMPLE), **problems(404, 410, 422, 503)},
        )

    async def get_events(
        self,
        job_id: str,
        last_event_id: Annotated[
            int | None, Header(ge=0, le=MAX_ID, description="Sent by clients that come again.")
        ] = None,
        after: Annotated[
            int | None,
            Query(
                alias="last_event_id",
                ge=0,
                le=MAX_ID,
                description="As the header, which counts more; 0 replays the whole story.",
            ),
        ] = None,
    ) -> Response:
        """Everything that happened to the job after the last event, then what happens, then `end`.

        Events are `status` and `milestone` (each with an id), `progress` (the latest one, without
        an id), `end` (the job has ended; do not come again) and `closing` (the server stops; come
        again). Comments keep the connection open.
        """
        job = await self._db.get_job(job_id)
        refuse_if_full(self._followers)
        start = last_event_id if last_event_id is not None else after or 0
        follower = JobFollower(job.id, start)
        return FollowResponse(self._followers, follower, job_events(self._followers, follower))


def refuse_if_full(followers: Followers) -> None:
    """503 where nobody more can follow in this process."""
    if followers.is_over or followers.is_full:
        kind, detail = (
            ("stopping", "the process ends; another one will answer")
            if followers.is_over
            else ("too-many-followers", "too many clients follow jobs through this process")
        )
        raise Problem(
            HTTPStatus.SERVICE_UNAVAILABLE,
            kind,
            detail,
            headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
        )


async def job_events(followers: Followers, follower: JobFollower) -> AsyncGenerator[bytes, None]:
    """The stream of a job's events."""
    yield format_sse_event(retry=RETRY_MILLISECONDS)
    while True:
        if not await follower.wait(PING_SECONDS):
            yield KEEPALIVE_COMMENT
            continue
        events, progress = follower.pop()
        # Asked before anything is sent: more may come meanwhile.
        last = _last_event(follower)
        if len(events) >= MAX_QUEUED:
            followers.look_again()
        for event in events:
            yield _stored_event(event)
        if progress is not None:
            yield _progress_event(progress)
        if last is not None:
            yield last
            return


async def log_events(followers: Followers, follower: LogFollower) -> AsyncGenerator[bytes, None]:
    """The stream of a job's log lines."""
    yield format_sse_event(retry=RETRY_MILLISECONDS)
    while True:
        if not await follower.wait(PING_SECONDS):
            yield KEEPALIVE_COMMENT
            continue
        lines = follower.pop()
        last = _last_event(follower)
        if len(lines) >= MAX_QUEUED:
            followers.look_again()
        for line in lines:
            yield _line_event(line)
        if last is not None:
            yield last
            return


def event_stream(example: str) -> dict[str, Any]:
    """A route's success in `responses`."""
    return {
        "description": "Events as they happen, until the job has ended.",
        "content": {"text/event-stream": {"schema": {"type": "string"}, "example": example}},
    }


def _last_event(follower: Follower) -> bytes | None:
    if follower.is_over:
        return _event("end", EndEvent(id=follower.job_id, status=follower.status))
    if follower.is_stopped:
        return _event("closing", ClosingEvent())
    return None


def _stored_event(event: StoredEvent) -> bytes:
    if event.kind != MILESTONE_KIND:
        return _event("status", StatusEvent.of(event), event.id)
    told = MilestoneResponse(
        stage=event.stage,
        fraction=event.fraction or 0.0,
        message=event.message,
        attempt=event.attempt,
        at=event.created_at,
    )
    return _event("milestone", told, event.id)


def _progress_event(progress: Progress) -> bytes:
    # Without an id: a client that comes again goes on after the last event that is stored.
    told = ProgressResponse(
        fraction=progress.fraction, stage=progress.stage, message=progress.message
    )
    return _event("progress", told)


def _line_event(line: StoredLine) -> bytes:
    return _event("log", LogLineResponse.of(line), line.id)


def _event(name: str, data: BaseModel, event_id: int | None = None) -> bytes:
    return format_sse_event(
        event=name,
        data_str=data.model_dump_json(),
        id=None if event_id is None else str(event_id),
    )


_EXAMPLE: Final = """\
retry: 2000

event: status
data: {"status":"running","attempt":1,"message":null,"at":"2026-11-30T09:00:00Z"}
id: 17

event: progress
data: {"fraction":0.4,"stage":"read","message":"1,200 of 3,000"}

event: end
data: {"id":"019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a11","status":"completed"}

"""
