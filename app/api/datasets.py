"""Files of answers in, as datasets that jobs name instead of carrying the text."""

import json
import logging
import re
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from http import HTTPStatus
from typing import Annotated, Any, BinaryIO, Final
from uuid import UUID

from fastapi import Query, Request, Response
from fastapi.routing import APIRouter
from starlette.requests import ClientDisconnect

from app.api.connected import while_connected
from app.api.datasets_intake import take_in
from app.api.datasets_schemas import (
    DatasetResponse,
    DatasetsPage,
    DatasetSummaryResponse,
    RowsPage,
    UploadResponse,
    upload_form,
)
from app.api.forms import Form, invalid_field, read_form, too_large
from app.api.intake import submitter_of
from app.api.links import link_to_next, next_page
from app.api.offloading import (
    BusyError,
    OffloadedError,
    Offloading,
    OutOfMemoryError,
)
from app.api.openapi import headers, problems
from app.api.problems import RETRY_AFTER_SECONDS, Problem
from app.api.receiving import in_time
from app.api.requests import form_type
from app.api.security_quota import Quota
from app.api.versions import beside
from app.datasets.tables import MAX_BYTES
from app.db.interface import DBFactory, DBInterface
from app.domain.errors import DatasetError, DatasetInUseError, DatasetNotFoundError

MAX_UPLOADS: Final = 16
"""That are received or read at once by one process; each has a file on disk."""

MAX_UPLOADS_OF_ONE: Final = 4
"""Of them with one key, and of all without any together."""

MAX_READERS: Final = 2
MAX_FORM_BYTES: Final = MAX_BYTES + 64 * 1024
"""Of a body: the file, the fields and what stands between them."""

READ_SECONDS: Final = 300.0
READ_MEMORY_BYTES: Final = 2 * 1024**3
"""Of one reader. The largest tables within the other bounds took 0.7 GiB (long texts), 0.9 GiB (CSV
of 5,000,000 cells) and 1.1 GiB (a workbook of 4,500,000)."""

MAX_NAME: Final = 255
MAX_ENCODING: Final = 40
PAGE: Final = 50
MAX_PAGE: Final = 200

_FIELDS: Final = ("name", "header_rows", "sheet", "encoding")
_HEADER_ROWS: Final = re.compile("[0-3]")
_logger: Final = logging.getLogger("haulage.api")


class DatasetRoutes:
    """Routes below `/datasets`.

    Args:
        db_factory: builds the adapter of a process that reads a file; None reads it in this one.
    """

    def __init__(self, db: DBInterface, quota: Quota, db_factory: DBFactory | None = None) -> None:
        self._db = db
        self._quota = quota
        self._uploads: Counter[str] = Counter()
        # An upload that has come in waits for the readers rather than being sent anew.
        self._reading = Offloading(
            db,
            db_factory,
            max_at_once=MAX_READERS,
            wait_seconds=READ_SECONDS,
            limit_seconds=READ_SECONDS,
            memory_bytes=READ_MEMORY_BYTES,
        )

    def add_to(self, router: APIRouter) -> None:
        """Declare the routes."""
        add = router.add_api_route
        add(
            "/datasets",
            self.upload_dataset,
            methods=["POST"],
            status_code=HTTPStatus.CREATED,
            response_model=UploadResponse,
            summary="Upload a file of answers",
            tags=["datasets"],
            openapi_extra={"requestBody": upload_form()},
            responses={
                201: {"headers": headers(Location="The dataset.")},
                **problems(400, 408, 413, 415, 422, 429, 503),
            },
        )
        add(
            "/datasets",
            self.list_datasets,
            methods=["GET"],
            response_model=DatasetsPage,
            summary="List datasets",
            tags=["datasets"],
            responses={200: {"headers": headers(Link="The next page.")}, **problems(422, 503)},
        )
        add(
            "/datasets/{dataset_id}",
            self.get_dataset,
            methods=["GET"],
            response_model=DatasetResponse,
            summary="What is known of a dataset",
            tags=["datasets"],
            responses=problems(404, 503),
        )
        add(
            "/datasets/{dataset_id}",
            self.delete_dataset,
            methods=["DELETE"],
            status_code=HTTPStatus.NO_CONTENT,
            summary="Remove a dataset",
            tags=["datasets"],
            responses=problems(404, 409, 503),
        )
        add(
            "/datasets/{dataset_id}/rows",
            self.list_dataset_rows,
            methods=["GET"],
            response_class=Response,
            summary="Read the rows of a dataset",
            tags=["datasets"],
            responses={
                200: {
                    "description": "The next rows.",
                    "headers": headers(Link="The next page."),
                    "model": RowsPage,
                },
                **problems(404, 422, 503),
            },
        )

    async def upload_dataset(self, http: Request, response: Response) -> UploadResponse:
        """Store a file of answers as a dataset, whole or not at all; jobs name it by its id.

        CSV in its dialects (with the header rows of survey tools), JSON list or lines, XLSX or ODS.
        Columns that identify people are left out and listed.
        """
        declared = http.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > MAX_FORM_BYTES:
            raise too_large(MAX_BYTES)
        submitter = submitter_of(http)
        if self._uploads.total() >= MAX_UPLOADS:
            raise _busy(f"{MAX_UPLOADS} files are being taken in already")
        if self._uploads[submitter] >= MAX_UPLOADS_OF_ONE:
            raise _busy(f"{MAX_UPLOADS_OF_ONE} files of yours are being taken in already")
        self._uploads[submitter] += 1
        try:
            await self._quota.admit_datasets(http, self._uploads[submitter])
            # It has no name: it is gone with the last process that has it open, whatever happens.
            with tempfile.TemporaryFile() as file:
                answer = await self._take_in(http, file)
        finally:
            self._uploads[submitter] -= 1
            self._uploads += Counter()  # without those who have none any more
        stored = UploadResponse.of_upload(answer)
        response.headers["Location"] = beside(http, f"/datasets/{stored.id}")
        return stored

    async def _take_in(self, http: Request, file: BinaryIO) -> Any:
        content_type = form_type(http)
        try:
            async with aclosing(_body(http)) as chunks:
                form = await read_form(
                    chunks,
                    content_type,
                    file,
                    file_field="file",
                    text_fields=_FIELDS,
                    max_file_bytes=MAX_BYTES,
                )
            wishes = {**_wishes(form), "submitted_by": submitter_of(http)}
            return await while_connected(http, self._reading.run(take_in, file, **wishes))
        except ClientDisconnect:  # nobody reads this
            raise Problem(HTTPStatus.BAD_REQUEST, "broken-off", "the client has gone") from None
        except BusyError as error:
            raise _busy(str(error)) from None
        except OutOfMemoryError:
            raise Problem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "too-large",
                f"reading the file would take more than {READ_MEMORY_BYTES // 2**20} MiB; split it",
                errors=[("/file", "takes too much memory")],
            ) from None
        except OffloadedError as error:
            _logger.error("a file could not be taken in: %s", error)  # noqa: TRY400  told by it
            raise _busy("the file could not be taken in; the reason was logged") from None
        except DatasetError as error:
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "unreadable-file",
                str(error),
                errors=[("/file", str(error))],
            ) from None

    async def list_datasets(
        self,
        http: Request,
        response: Response,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = PAGE,
        after: Annotated[
            UUID | None, Query(description="Id of the last one on the page before.")
        ] = None,
    ) -> DatasetsPage:
        """Datasets, the newest first."""
        found = await self._db.list_datasets(
            limit + 1, before_id=None if after is None else str(after)
        )
        items = found[:limit]
        more = next_page(http, after=items[-1].id) if len(found) > limit else None
        link_to_next(response, more)
        listed = [DatasetSummaryResponse.model_validate(dataset) for dataset in items]
        return DatasetsPage(items=listed, next=more)

    async def get_dataset(self, dataset_id: str) -> DatasetResponse:
        """Columns with the questions asked there, and what was found out about the file."""
        try:
            return DatasetResponse.of(await self._db.get_dataset(dataset_id))
        except DatasetNotFoundError as error:
            raise _unknown(error) from None

    async def delete_dataset(self, dataset_id: str) -> None:
        """Remove a dataset with its rows; refused while a job that has not ended names it."""
        try:
            await self._db.delete_dataset(dataset_id)
        except DatasetNotFoundError as error:
            raise _unknown(error) from None
        except DatasetInUseError as error:
            raise Problem(HTTPStatus.CONFLICT, "dataset-in-use", str(error)) from None

    async def list_dataset_rows(
        self,
        dataset_id: str,
        http: Request,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = PAGE,
        after: Annotated[
            int, Query(ge=0, le=2**31 - 1, description="Number of the row before the first one.")
        ] = 0,
    ) -> Response:
        """Rows in their order; fewer than `limit` where they are long."""
        try:
            dataset = await self._db.get_dataset(dataset_id)
        except DatasetNotFoundError as error:
            raise _unknown(error) from None
        rows = await self._db.list_dataset_json(dataset_id, limit, after_row=after)
        more = None
        if rows and rows[-1].row_no < dataset.row_count:
            more = next_page(http, after=rows[-1].row_no)
        # The store has made JSON of the cells already.
        items = ",".join(f'{{"row":{row.row_no},"cells":{row.text}}}' for row in rows)
        named = json.dumps(dataset.columns)
        page = f'{{"columns":{named},"items":[{items}],"next":{json.dumps(more)}}}'
        response = Response(page, media_type="application/json")
        link_to_next(response, more)
        return response


async def _body(http: Request) -> AsyncGenerator[bytes, None]:
    """The body as it comes; 413 as soon as it is too large, 408 where it comes too slowly."""
    size = 0
    async with aclosing(in_time(http.stream())) as stream:
        async for chunk in stream:
            size += len(chunk)
            if size > MAX_FORM_BYTES:
                raise too_large(MAX_BYTES)
            yield chunk


def _wishes(form: Form) -> dict[str, Any]:
    """The arguments of `take_in`."""
    file_name = re.split(r"[/\\]", form.file_name or "")[-1]
    name = form.fields.get("name", file_name[-MAX_NAME:] or "upload")
    if not 0 < len(name) <= MAX_NAME:
        raise invalid_field("name", f"1 to {MAX_NAME} characters")
    header_rows = form.fields.get("header_rows")
    if header_rows is not None and not _HEADER_ROWS.fullmatch(header_rows):
        raise invalid_field("header_rows", "0 to 3")
    for field, longest in (("sheet", MAX_NAME), ("encoding", MAX_ENCODING)):
        if len(form.fields.get(field, "")) > longest:
            raise invalid_field(field, f"at most {longest} characters")
    return {
        "name": name,
        "file_name": file_name,
        "header_rows": None if header_rows is None else int(header_rows),
        "sheet": form.fields.get("sheet"),
        "encoding": form.fields.get("encoding"),
    }


def _unknown(error: DatasetNotFoundError) -> Problem:
    return Problem(HTTPStatus.NOT_FOUND, "no-such-dataset", str(error))


def _busy(detail: str) -> Problem:
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "busy",
        detail,
        headers={"Retry-After": str(RETRY_AFTER_SECONDS), "Connection": "close"},
    )
