"""What a completed job has left: as it was stored, in parts, and in forms for other programs."""

import asyncio
import json
import logging
import re
import tempfile
from collections.abc import Iterable
from http import HTTPStatus
from typing import Annotated, Any, BinaryIO, Final, Literal

from fastapi import Path, Query, Request, Response
from fastapi.routing import APIRouter

from app.api.connected import while_connected
from app.api.export import export
from app.api.links import link_to_next, next_page
from app.api.offloading import BusyError, OffloadedError, Offloading, OutOfMemoryError
from app.api.openapi import headers, problems
from app.api.problems import RETRY_AFTER_SECONDS, Problem
from app.api.results_schemas import QuotesPage, ResponsesPage, ThemesResponse
from app.api.room import Room
from app.api.slices import SLICE_BYTES, SlicedResponse
from app.db.ids import as_uuid
from app.db.interface import DBFactory, DBInterface
from app.domain.errors import ExportError
from app.domain.jobs import JobStatus
from app.domain.results import PartPage, ResultState
from app.results.exports.forms import FORMS

MAX_EXPORTS: Final = 2
"""That are made at once by one process."""

MAX_FETCHES: Final = 8
"""Of results at once, each of which is whole in memory until it is on its way."""

MAX_ANSWERS_BYTES: Final = 2 * 1024**3
"""On disk, of answers that are being sent."""

EXPORT_WAIT_SECONDS: Final = 10.0
EXPORT_SECONDS: Final = 120.0
EXPORT_MEMORY_BYTES: Final = 2 * 1024**3
"""Of one process."""

PAGE: Final = 50
MAX_PAGE: Final = 200

_JSON: Final = "application/json"
_THEME_NUMBER: Final = re.compile(r"([0-9]{1,3})(\.[0-9]{1,3})?")
_logger: Final = logging.getLogger("haulage.api")

Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
After = Annotated[int, Query(ge=0, le=2**30, description="How many are left out from the first.")]


class ResultRoutes:
    """Routes below `/jobs/{job_id}/result`.

    Args:
        db_factory: builds the adapter of a process that writes an export; None writes it in this
            one.
    """

    def __init__(self, db: DBInterface, db_factory: DBFactory | None = None) -> None:
        self._db = db
        self._fetching = asyncio.Semaphore(MAX_FETCHES)
        self._room = Room(MAX_ANSWERS_BYTES, "large answers")
        self._exporting = Offloading(
            db,
            db_factory,
            max_at_once=MAX_EXPORTS,
            wait_seconds=EXPORT_WAIT_SECONDS,
            limit_seconds=EXPORT_SECONDS,
            memory_bytes=EXPORT_MEMORY_BYTES,
        )

    def add_to(self, router: APIRouter) -> None:
        """Declare the routes."""
        path = "/jobs/{job_id}/result"
        add = router.add_api_route
        content: dict[str, Any] = {
            form.media_type.partition(";")[0]: {"schema": {"type": "string", "format": "binary"}}
            for form in FORMS.values()
        }
        add(
            path,
            self.get_result,
            methods=["GET"],
            summary="Fetch what the pipeline returned",
            tags=["results"],
            response_class=Response,
            responses={
                200: {
                    "description": "The stored result, or an export of it.",
                    "content": {**content, _JSON: {"schema": {}}},
                    "headers": headers(ETag="Of the stored result, which never changes."),
                },
                304: {"description": "The client has it already (If-None-Match)."},
                **problems(404, 406, 409, 410, 422, 503),
            },
        )
        add(
            path + "/themes",
            self.get_result_themes,
            methods=["GET"],
            summary="The themes of an analysis with their counts",
            tags=["results"],
            response_class=Response,
            responses={
                200: {"description": "Themes and counts.", "model": ThemesResponse},
                **problems(404, 409, 410, 503),
            },
        )
        add(
            path + "/themes/{theme}/quotes",
            self.list_theme_quotes,
            methods=["GET"],
            summary="What people said about a theme",
            tags=["results"],
            response_class=Response,
            responses={
                200: {
                    "description": "The next quotes.",
                    "model": QuotesPage,
                    "headers": headers(Link="The next page."),
                },
                **problems(404, 409, 410, 422, 503),
            },
        )
        add(
            path + "/responses",
            self.list_result_responses,
            methods=["GET"],
            summary="Where each answer went",
            tags=["results"],
            response_class=Response,
            responses={
                200: {
                    "description": "The next rows.",
                    "model": ResponsesPage,
                    "headers": headers(Link="The next page."),
                },
                **problems(404, 409, 410, 422, 503),
            },
        )

    async def get_result(
        self,
        job_id: str,
        http: Request,
        form: Annotated[
            Literal["json", "csv", "xlsx", "html"],
            Query(alias="format", description="csv, xlsx and html are made for analyses."),
        ] = "json",
        part: Annotated[
            Literal["themes", "quotes", "responses", "insights"] | None,
            Query(description="What a CSV has in it; every answer with its themes if not given."),
        ] = None,
    ) -> Response:
        """The result exactly as stored, or as a table or page; 409 while there is none."""
        state = await self._require_result(job_id)
        key = as_uuid(job_id)
        tag = f'"{key}.{state.claim_no}"'
        if part is not None and form != "csv":
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "invalid-input",
                f"/part: only for format=csv; {form} has every part",
            )
        facts = {"ETag": tag, "Cache-Control": "private, no-cache"}
        if form == "json" and _is_known(http, tag):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=facts)
        if form != "json":
            # Without a tag: texts come and go with the dataset, and writers change with versions.
            return await while_connected(http, self._exported(str(key), form, part))
        async with self._fetching:
            pieces = await self._db.list_result_pieces(job_id)
            if not pieces:  # run again between the two looks
                raise await self._no_result(job_id)
            if sum(map(len, pieces)) <= SLICE_BYTES:
                return SlicedResponse(pieces, _JSON, facts)
            # On disk, however long the client takes.
            file = tempfile.TemporaryFile()  # noqa: SIM115  the response closes it
            try:
                await asyncio.to_thread(_write, file, pieces)
                return SlicedResponse(file, _JSON, facts, room=self._room)
            except BaseException:
                file.close()
                raise

    async def get_result_themes(self, job_id: str) -> Response:
        """Every theme as it is in the result, with what became of the other answers."""
        await self._require_result(job_id)
        themes = await self._db.get_result_themes(job_id)
        if themes is None:
            raise _no_analysis(job_id)
        return Response(themes, media_type=_JSON)

    async def list_theme_quotes(
        self,
        job_id: str,
        theme: Annotated[
            str, Path(max_length=20, description="Id or number: T03, 3, T03.1 or 3.1.")
        ],
        http: Request,
        limit: Limit = PAGE,
        after: After = 0,
    ) -> Response:
        """Quotes of a theme, the most typical first."""
        await self._require_result(job_id)
        theme_id = _theme_id(theme)
        found = await self._db.get_theme_quotes(job_id, theme_id, limit, after=after)
        if found is None:
            raise Problem(
                HTTPStatus.NOT_FOUND,
                "no-such-theme",
                f"the result of job {job_id} has no theme {theme_id!r}",
            )
        return _page(http, found.quotes, after, f'"theme":{found.theme},')

    async def list_result_responses(
        self, job_id: str, http: Request, limit: Limit = PAGE, after: After = 0
    ) -> Response:
        """The themes of each row, in the order of the input; non-answers are among them."""
        await self._require_result(job_id)
        found = await self._db.list_assignments(job_id, limit, after=after)
        if found is None:
            raise _no_analysis(job_id)
        return _page(http, found, after)

    async def _exported(self, job_id: str, form: str, part: str | None) -> Response:
        # It has no name: it is gone with the answer, whatever happens.
        file = tempfile.TemporaryFile()  # noqa: SIM115  the response closes it
        try:
            await self._exporting.run(export, file, job_id=job_id, form=form, part=part)
        except BaseException as error:
            file.close()
            if isinstance(error, ExportError):
                raise Problem(HTTPStatus.NOT_ACCEPTABLE, "no-export", str(error)) from None
            if isinstance(error, OutOfMemoryError):
                told = "it would take too much memory in this form"
                raise Problem(HTTPStatus.NOT_ACCEPTABLE, "no-export", told) from None
            if isinstance(error, OffloadedError):
                _logger.error("an export could not be made: %s", error)  # noqa: TRY400
                raise _busy("the export could not be made; the reason was logged") from None
            if isinstance(error, BusyError):
                raise _busy(str(error)) from None
            raise
        chosen = FORMS[form]
        name = f"result-{job_id}{'-' + part if part else ''}.{form}"
        facts = {
            "Cache-Control": "no-store",
            "Content-Disposition": f'{chosen.disposition}; filename="{name}"',
            "X-Content-Type-Options": "nosniff",
            # What people wrote is escaped; should that fail, nothing of it may run or be fetched.
            "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'",
        }
        try:
            return SlicedResponse(file, chosen.media_type, facts, room=self._room)
        except Problem:
            file.close()
            raise

    async def _require_result(self, job_id: str) -> ResultState:
        state = await self._db.get_result_state(job_id)
        if state.claim_no is None:
            raise await self._no_result(job_id)
        return state

    async def _no_result(self, job_id: str) -> Problem:
        job = await self._db.get_job(job_id)
        if job.status is JobStatus.COMPLETED:  # between the two looks
            detail = f"job {job_id} has completed this moment; ask again"
        else:
            detail = f"job {job_id} is {job.status}"
        if job.error is not None:
            detail += f": {job.error.message}"
        is_over = job.status.is_terminal and job.status is not JobStatus.COMPLETED
        return Problem(
            HTTPStatus.CONFLICT,
            "no-result",
            detail,
            headers={} if is_over else {"Retry-After": str(RETRY_AFTER_SECONDS)},
            job_status=job.status,
        )


def _page(http: Request, page: PartPage, after: int, more_fields: str = "") -> Response:
    """A page whose items are JSON already."""
    more = next_page(http, after=after + page.count) if page.has_more else None
    body = f'{{{more_fields}"items":{page.items},"next":{json.dumps(more)}}}'
    response = Response(body, media_type=_JSON)
    link_to_next(response, more)
    return response


def _write(file: BinaryIO, pieces: Iterable[bytes]) -> None:
    file.writelines(pieces)
    file.flush()


def _theme_id(name: str) -> str:
    """The id of a theme that may be named by its number alone."""
    number = _THEME_NUMBER.fullmatch(name)
    return name if number is None else f"T{int(number[1]):02d}{number[2] or ''}"


def _is_known(http: Request, tag: str) -> bool:
    listed = http.headers.get("if-none-match", "")
    tags = [each.strip().removeprefix("W/") for each in listed.split(",")]
    return tag in tags or listed.strip() == "*"


def _no_analysis(job_id: str) -> Problem:
    return Problem(
        HTTPStatus.NOT_FOUND,
        "no-analysis",
        f"the result of job {job_id} is no thematic analysis, so it has no such part",
    )


def _busy(detail: str) -> Problem:
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "busy",
        detail,
        headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
    )
