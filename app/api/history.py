"""What a job's attempts left behind: how each ended, its log, its intermediate results."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import Depends, Header, Query, Request, Response
from fastapi.routing import APIRouter
from pydantic import BeforeValidator

from app.api.events import MAX_ID, FollowResponse, event_stream, log_events, refuse_if_full
from app.api.following import Followers, LogFollower
from app.api.following_schemas import (
    AttemptPage,
    AttemptResponse,
    CheckpointPage,
    CheckpointResponse,
    LogLevel,
    LogLineResponse,
    LogPage,
)
from app.api.openapi import headers, problems
from app.api.problems import Problem
from app.api.versions import beside
from app.db.ids import as_uuid
from app.db.interface import DBInterface
from app.domain.following import (
    ATTEMPTS_PAGE,
    CHECKPOINTS_PAGE,
    LOG_PAGE_LINES,
    LogCursor,
    StoredLine,
)

DEFAULT_TAIL: Final = 1_000
MAX_TAIL: Final = 10_000
MAX_STAGE_CHARACTERS: Final = 200

_PLAIN: Final = "text/plain"


class LogQuery:
    """Which lines of a log somebody wants."""

    def __init__(
        self,
        tail: Annotated[
            int, Query(ge=1, le=MAX_TAIL, description="Lines at most: the last ones.")
        ] = DEFAULT_TAIL,
        level: Annotated[
            LogLevel,
            BeforeValidator(lambda text: text.lower() if isinstance(text, str) else text),
            Query(description="Lines of this level and above."),
        ] = LogLevel.DEBUG,
        after: Annotated[
            int | None,
            Query(ge=0, le=MAX_ID, description="The first `tail` lines after this id instead."),
        ] = None,
        follow: Annotated[  # noqa: FBT002  a query parameter
            bool, Query(description="Server-sent events, until the job has ended.")
        ] = False,
        last_event_id: Annotated[
            int | None, Header(ge=0, le=MAX_ID, description="As `after`, for `follow`.")
        ] = None,
    ) -> None:
        self.tail = tail
        self.level = level
        self.after = last_event_id if follow and last_event_id is not None else after
        self.follow = follow


_NEXT: Final = 'The next page: `<...>; rel="next"`.'


class HistoryRoutes:
    """Routes for what lies below a job.

    Args:
        followers: for logs that are followed.
    """

    def __init__(self, db: DBInterface, followers: Followers) -> None:
        self._db = db
        self._followers = followers

    def add_to(self, router: APIRouter) -> None:
        """Declare the routes."""
        add = router.add_api_route
        add(
            "/jobs/{job_id}/attempts",
            self.list_attempts,
            methods=["GET"],
            response_model=AttemptPage,
            summary="How each attempt ended",
            tags=["jobs"],
            responses={200: {"headers": headers(Link=_NEXT)}, **problems(404, 410, 422, 503)},
        )
        add(
            "/jobs/{job_id}/logs",
            self.get_logs,
            methods=["GET"],
            summary="Read or follow a job's log",
            tags=["jobs"],
            response_class=Response,
            responses={
                200: {
                    "model": LogPage,
                    "description": "Lines, oldest first; as text where `Accept` says so.",
                    "content": {
                        "text/plain": {"schema": {"type": "string"}, "example": _TEXT_EXAMPLE},
                        **event_stream(_LOG_EXAMPLE)["content"],
                    },
                    "headers": headers(Link=_NEXT),
                },
                **problems(404, 410, 422, 503),
            },
        )
        add(
            "/jobs/{job_id}/checkpoints",
            self.list_checkpoints,
            methods=["GET"],
            response_model=CheckpointPage,
            summary="Which intermediate results there are",
            tags=["jobs"],
            responses={200: {"headers": headers(Link=_NEXT)}, **problems(404, 410, 422, 503)},
        )
        add(
            # Pipelines name their stages freely, also with a slash.
            "/jobs/{job_id}/checkpoints/{stage:path}",
            self.get_checkpoint,
            methods=["GET"],
            summary="Fetch an intermediate result",
            tags=["jobs"],
            response_class=Response,
            responses={
                200: {
                    "description": "The stored checkpoint.",
                    "content": {"application/json": {"schema": {}}},
                },
                **problems(404, 410, 503),
            },
        )

    async def list_attempts(
        self,
        job_id: str,
        http: Request,
        response: Response,
        after: Annotated[int, Query(ge=0, le=MAX_ID, description="Claims after this number.")] = 0,
        limit: Annotated[int, Query(ge=1, le=ATTEMPTS_PAGE)] = ATTEMPTS_PAGE,
    ) -> AttemptPage:
        """Every claim of the job, oldest first: who ran it, how it ended, what it used up."""
        attempts = await self._db.list_attempts_after(job_id, after, limit + 1)
        if not attempts:
            await self._db.get_job(job_id)  # 404 where there is none
        following = None
        if len(attempts) > limit:
            last = attempts[limit - 1].claim_no
            following = _next(http, job_id, "attempts", after=last, limit=limit)
            response.headers["Link"] = _link(following)
        items = [AttemptResponse.of(attempt) for attempt in attempts[:limit]]
        return AttemptPage(items=items, next=following)

    async def get_logs(
        self,
        job_id: str,
        http: Request,
        wanted: Annotated[LogQuery, Depends()],
    ) -> Response:
        """The last lines of all attempts, or those after one; as JSON, text or a stream of events.

        `Accept: text/plain` gives a line of text each. With `follow=true` the lines come as `log`
        events while they are written, then `end`.
        """
        job = await self._db.get_job(job_id)
        if wanted.follow:
            refuse_if_full(self._followers)
        level = wanted.level.number
        after = wanted.after
        if after is None:
            after = await self._db.find_log_tail(job_id, wanted.tail, level)
        if wanted.follow:
            follower = LogFollower(job.id, after, level)
            return FollowResponse(self._followers, follower, log_events(self._followers, follower))
        pages = [page async for page in self._pages(LogCursor(job_id, after, level), wanted.tail)]
        return await self._log_response(http, job_id, wanted, pages)

    async def list_checkpoints(
        self,
        job_id: str,
        http: Request,
        response: Response,
        after: Annotated[
            str, Query(max_length=MAX_STAGE_CHARACTERS, description="Stages after this one.")
        ] = "",
        limit: Annotated[int, Query(ge=1, le=CHECKPOINTS_PAGE)] = CHECKPOINTS_PAGE,
    ) -> CheckpointPage:
        """The job's intermediate results by stage; `/checkpoints/{stage}` gives one."""
        found = await self._db.list_checkpoints(job_id, after, limit + 1)
        if not found:
            await self._db.get_job(job_id)  # 404 where there is none
        following = None
        if len(found) > limit:
            last = found[limit - 1].stage
            following = _next(http, job_id, "checkpoints", after=last, limit=limit)
            response.headers["Link"] = _link(following)
        items = [CheckpointResponse.of(checkpoint) for checkpoint in found[:limit]]
        return CheckpointPage(items=items, next=following)

    async def get_checkpoint(self, job_id: str, stage: str) -> Response:
        """The intermediate result of a stage exactly as stored."""
        data = await self._db.get_checkpoint(job_id, stage)
        if data is not None:
            return Response(data, media_type="application/json")
        await self._db.get_job(job_id)
        raise Problem(
            HTTPStatus.NOT_FOUND,
            "no-such-checkpoint",
            f"job {job_id} has no checkpoint of this stage",
        )

    async def _pages(
        self, cursor: LogCursor, lines: int
    ) -> AsyncGenerator[Sequence[StoredLine], None]:
        """Up to `lines` lines after a cursor; the loop serves others between the pages."""
        while lines > 0:
            [found] = await self._db.list_lines([cursor], min(lines, LOG_PAGE_LINES))
            if found.lines:
                yield found.lines
            if found.is_whole:
                return
            cursor = LogCursor(cursor.job_id, found.after, cursor.least_level)
            lines -= len(found.lines)

    async def _log_response(
        self, http: Request, job_id: str, wanted: LogQuery, pages: Sequence[Sequence[StoredLine]]
    ) -> Response:
        headers = {"Vary": "Accept"}
        following = None
        if wanted.after is not None and sum(map(len, pages)) == wanted.tail:
            last, level = pages[-1][-1].id, wanted.level
            following = _next(http, job_id, "logs", after=last, tail=wanted.tail, level=level)
            headers["Link"] = _link(following)
        # Thousands of lines take tens of milliseconds to write down.
        if _prefers_text(http):
            text = await asyncio.to_thread(_as_text, pages)
            return Response(text, media_type=_PLAIN, headers=headers)
        body = await asyncio.to_thread(_as_json, pages, following)
        return Response(body, media_type="application/json", headers=headers)


def _next(http: Request, job_id: str, area: str, **query: object) -> str:
    return f"{beside(http, f'/jobs/{as_uuid(job_id)}/{area}')}?{urlencode(query)}"


def _link(following: str) -> str:
    return f'<{following}>; rel="next"'


def _prefers_text(http: Request) -> bool:
    """Whether text comes before JSON in what the client accepts."""
    for accepted in http.headers.get("accept", "").split(","):
        match accepted.partition(";")[0].strip().lower():
            case "text/plain" | "text/*":
                return True
            case "application/json" | "application/*" | "*/*":
                return False
            case _:
                pass
    return False


def _as_json(pages: Sequence[Sequence[StoredLine]], following: str | None) -> bytes:
    items = [LogLineResponse.of(line) for page in pages for line in page]
    return LogPage(items=items, next=following).model_dump_json().encode()


def _as_text(pages: Sequence[Sequence[StoredLine]]) -> bytes:
    return "".join(_line(line) for page in pages for line in page).encode()


def _line(line: StoredLine) -> str:
    at = line.at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f"{at} {LogLevel.of(line.level).name:<8} {line.source}: {line.text}\n"


_TEXT_EXAMPLE: Final = "2026-11-30T09:00:00.123Z INFO     stdout: read 3,012 answers\n"
_LOG_EXAMPLE: Final = """\
event: log
data: {"id":4711,"attempt":1,"number":1,"at":"2026-11-30T09:00:00Z","level":"info",\
"source":"stdout","text":"read 3,012 answers"}
id: 4711

event: end
data: {"id":"019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a11","status":"completed"}

"""
