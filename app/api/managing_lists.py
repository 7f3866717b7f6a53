"""Looking for jobs: filters, and pages that go on from a key instead of a number."""

import base64
import binascii
from http import HTTPStatus
from typing import Annotated
from urllib.parse import urlencode
from uuid import UUID

from fastapi import Query, Request, Response
from fastapi.routing import APIRouter

from app.api.managing_schemas import (
    CountResponse,
    JobListResponse,
    JobSummaryResponse,
    ListQuery,
)
from app.api.openapi import headers, problems
from app.api.problems import Problem
from app.api.versions import beside
from app.db.interface import DBInterface


class ListRoutes:
    """`GET /jobs`."""

    def __init__(self, db: DBInterface) -> None:
        self._db = db

    def add_to(self, router: APIRouter) -> None:
        """Declare the route."""
        router.add_api_route(
            "/jobs",
            self.list_jobs,
            methods=["GET"],
            response_model=JobListResponse,
            summary="Look for jobs",
            tags=["jobs"],
            responses={
                200: {"headers": headers(Link='The next page: `<...>; rel="next"`.')},
                **problems(422, 503),
            },
        )

    async def list_jobs(
        self, query: Annotated[ListQuery, Query()], response: Response, http: Request
    ) -> JobListResponse:
        """Jobs that fit every condition, the newest first.

        Follow `next` until it is null. One page looks at 50,000 jobs at most, so with a rare
        condition it may hold few or none and still have a next one.
        """
        wanted = query.wanted()
        page = await self._db.list_jobs(
            wanted, limit=query.limit, before=query.cursor and _id_of(query.cursor)
        )
        total = None
        if query.count:
            counted = await self._db.count_jobs(wanted)
            total = CountResponse(count=counted.count, is_exact=counted.is_exact)
        following = page.before and _link(http, page.before)
        if following:
            response.headers["Link"] = f'<{following}>; rel="next"'
        return JobListResponse(
            items=[JobSummaryResponse.of(job) for job in page.jobs],
            next=following,
            total=total,
        )


def _link(http: Request, before: str) -> str:
    """The same search from there on; what was counted is not counted again."""
    asked = [(k, v) for k, v in http.query_params.multi_items() if k not in {"cursor", "count"}]
    return beside(http, f"/jobs?{urlencode([*asked, ('cursor', _cursor_of(before))])}")


def _cursor_of(job_id: str) -> str:
    return base64.urlsafe_b64encode(UUID(job_id).bytes).decode().rstrip("=")


def _id_of(cursor: str) -> str:
    try:
        found = UUID(bytes=base64.b64decode(cursor + "==", altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "bad-cursor",
            "take the cursor as it stands in the `next` of a page",
            errors=[("/query/cursor", "no cursor of ours")],
        ) from None
    return str(found)
