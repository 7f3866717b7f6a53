"""Datasets in MongoDB: written whole or not at all, read by pages; it knows no jobs.

    being written --> whole --> being removed

Only what is whole exists to anybody. One transaction for all rows could last longer than the server
lets any, so a document goes before the rows; what a process left that died in the middle, of an
upload or of a removal, is cleared away by a later upload or by retention.
"""

import json
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from itertools import islice
from typing import Any, Final

from pymongo import ReturnDocument

from app.db.ids import new_id
from app.db.mongo.calls import MongoCalls, Session, key_of, made_by, unless_there
from app.db.mongo.connections import Document
from app.db.mongo.instants import NOW, instant, now_plus
from app.db.mongo.texts import text_of
from app.db.tables import check_head, checked_rows
from app.domain.errors import (
    DatabaseUnavailableError,
    DatasetInUseError,
    DatasetNotFoundError,
)
from app.domain.sharing import (
    DATASET_PAGE_ROWS,
    DATASETS_OF_FILE,
    MAX_PAGE_BYTES,
    Dataset,
    DatasetSummary,
    JsonRow,
)

INSERT_SECONDS: Final = 300.0
CLEAR_SECONDS: Final = 3.0
BATCH_ROWS: Final = 1_000
# Longer than any upload may take: what is still not whole then has nobody left who writes it.
LEFT_SECONDS: Final = 3_600.0

WHOLE: Final[Document] = {"is_whole": True}


class MongoDatasets(MongoCalls):
    """The part of `DBInterface` about datasets."""

    async def insert_dataset(
        self,
        name: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        sha256: str,
        detected: Mapping[str, Any],
        submitted_by: str = "",
    ) -> Dataset:
        """See DBInterface."""
        check_head(name, columns, detected)
        key = new_id()
        begun = {
            "name": name,
            "sha256": sha256,
            "detected": text_of(dict(detected)),
            "columns": list(columns),
            "row_count": 0,
            "submitted_by": submitted_by,
            "pins": 0,
            "is_whole": False,
        }
        await self._clear_what_was_left()
        try:
            async with self._bounded(INSERT_SECONDS):
                datasets = self._collection("datasets")
                await datasets.update_one(
                    {"_id": key}, unless_there(begun, {"created_at": NOW}), upsert=True
                )
                row_count = await self._insert_rows(key, checked_rows(columns, rows))
                stored = await datasets.find_one_and_update(
                    {"_id": key},
                    {"$set": {"row_count": row_count, **WHOLE}},
                    return_document=ReturnDocument.AFTER,
                )
        except BaseException:
            # Or else later, with what others left: who was told to stop has little time, and a
            # server that is away would keep an error from being told.
            with suppress(DatabaseUnavailableError):
                await self._remove(key, CLEAR_SECONDS)
            raise
        return _dataset(made_by(stored))

    async def get_dataset(self, dataset_id: str) -> Dataset:
        """See DBInterface."""
        async with self._bounded():
            found = await self._collection("datasets").find_one(
                {"_id": key_of(dataset_id), **WHOLE}
            )
        if found is None:
            raise DatasetNotFoundError(dataset_id)
        return _dataset(found)

    async def list_datasets(
        self, limit: int, *, before_id: str | None = None
    ) -> list[DatasetSummary]:
        """See DBInterface."""
        if limit < 1:
            return []  # to the server none means all
        before = None if before_id is None else key_of(before_id)
        older = {"_id": {"$lt": before}} if before else {}
        async with self._bounded():
            found = self._collection("datasets").find({**WHOLE, **older}, {"detected": 0})
            return [
                DatasetSummary(
                    id=dataset["_id"],
                    name=dataset["name"],
                    row_count=dataset["row_count"],
                    column_count=len(dataset["columns"]),
                    created_at=instant(dataset["created_at"]),
                )
                async for dataset in found.sort([("_id", -1)]).limit(limit)
            ]

    async def list_datasets_of_file(self, sha256: str) -> list[Dataset]:
        """See DBInterface."""
        async with self._bounded():
            found = self._collection("datasets").find({"sha256": sha256, **WHOLE})
            newest = found.sort([("_id", -1)]).limit(DATASETS_OF_FILE)
            return [_dataset(dataset) async for dataset in newest]

    async def list_dataset_rows(
        self, dataset_id: str, positions: Sequence[int], *, after_row: int = 0
    ) -> list[tuple[int, list[str]]]:
        """See DBInterface."""
        # The server sends the cells that are wanted, and no others.
        wanted = [{"$arrayElemAt": ["$cells", position]} for position in positions]
        async with self._rows_after(dataset_id, after_row, DATASET_PAGE_ROWS, wanted) as page:
            return [(row["row_no"], row["cells"]) async for row in page]

    async def list_dataset_json(
        self, dataset_id: str, limit: int, *, after_row: int = 0
    ) -> list[JsonRow]:
        """See DBInterface."""
        if limit < 1:
            return []  # to the server none means all
        page: list[JsonRow] = []
        size_bytes = 0
        async with self._rows_after(dataset_id, after_row, limit) as rows:
            async for row in rows:
                text = text_of(row["cells"])
                size_bytes += len(text.encode())
                if page and size_bytes > MAX_PAGE_BYTES:
                    break
                page.append(JsonRow(row["row_no"], text))
        return page

    @asynccontextmanager
    async def _rows_after(
        self, dataset_id: str, after_row: int, limit: int, wanted: Any = 1
    ) -> AsyncGenerator[AsyncIterator[Document], None]:
        """The next rows; none of a dataset that is being removed, or a page would have gaps."""
        key = key_of(dataset_id)
        async with self._at_one_instant() as session:
            datasets = self._collection("datasets")
            is_there = await datasets.find_one({"_id": key, **WHOLE}, {"_id": 1}, session=session)
            found = self._collection("dataset_rows").find(
                {"dataset_id": key if is_there else "", "row_no": {"$gt": after_row}},
                {"row_no": 1, "cells": wanted},
                session=session,
            )
            yield found.sort([("row_no", 1)]).limit(limit)

    async def delete_dataset(self, dataset_id: str) -> None:
        """See DBInterface."""
        key = key_of(dataset_id)

        async def give_up(session: Session) -> None:
            # Changed before anything is decided: a job that names it meanwhile conflicts with this.
            found = await self._collection("datasets").update_one(
                {"_id": key, **WHOLE}, {"$set": {"is_whole": False}}, session=session
            )
            if not found.matched_count:
                raise DatasetNotFoundError(dataset_id)
            jobs = self._collection("jobs")
            needing = {"dataset_id": key, "status": {"$in": ["pending", "running"]}}
            if await jobs.find_one(needing, {"_id": 1}, session=session) is not None:
                raise DatasetInUseError(dataset_id)
            # One that begins to run again meanwhile conflicts with this, too.
            await jobs.update_many(
                {"dataset_id": key}, {"$set": {"dataset_id": None}}, session=session
            )

        await self._in_transaction(give_up)
        await self._remove(key)

    async def _insert_rows(self, key: str, rows: Iterator[list[str]]) -> int:
        row_count = 0
        while batch := list(islice(rows, BATCH_ROWS)):
            await self._collection("dataset_rows").insert_many(
                [
                    {"dataset_id": key, "row_no": row_no, "cells": cells}
                    for row_no, cells in enumerate(batch, row_count + 1)
                ]
            )
            row_count += len(batch)
        return row_count

    async def _remove(self, key: str, timeout_seconds: float = INSERT_SECONDS) -> None:
        """Remove what is not whole: the rows, then the document that would tell of them."""
        async with self._bounded(timeout_seconds):
            await self._collection("dataset_rows").delete_many({"dataset_id": key})
            await self._collection("datasets").delete_one({"_id": key, "is_whole": False})

    async def _clear_what_was_left(self) -> None:
        """Remove what processes left that died in the middle."""
        async with self._bounded():
            left = self._collection("datasets").find(
                {
                    "is_whole": False,
                    "$expr": {"$lt": ["$created_at", now_plus(-LEFT_SECONDS)]},
                },
                {"_id": 1},
            )
            keys = [dataset["_id"] async for dataset in left]
        for key in keys:
            await self._remove(key)


def _dataset(found: Document) -> Dataset:
    return Dataset(
        id=found["_id"],
        name=found["name"],
        columns=tuple(found["columns"]),
        row_count=found["row_count"],
        detected=json.loads(found["detected"]),
        sha256=found["sha256"],
        created_at=instant(found["created_at"]),
    )
