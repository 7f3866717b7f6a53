"""Datasets in PostgreSQL: written whole or not at all, read by pages; it knows no jobs.

A dataset is one transaction of many small statements: each batch has the server's time-out to
itself, so that a large file needs no longer one.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final
from uuid import UUID

import asyncpg

from app.db.ids import as_uuid, new_id
from app.db.postgres.calls import PostgresCalls
from app.db.postgres.statements import STATEMENTS
from app.db.tables import check_head, checked_rows
from app.domain.errors import (
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
BATCH_ROWS: Final = 1_000


class PostgresDatasets(PostgresCalls):
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
        found = check_head(name, columns, detected)
        key = UUID(new_id())
        checked = checked_rows(columns, rows)
        row_count = 0
        async with self._borrowed(INSERT_SECONDS) as connection:
            try:
                await connection.execute("begin")
                created_at = await connection.fetchval(
                    STATEMENTS["insert_dataset"].sql,
                    key,
                    name,
                    bytes.fromhex(sha256),
                    found,
                    list(columns),
                    submitted_by,
                )
                while batch := list(islice(checked, BATCH_ROWS)):
                    numbered = [(key, row_count + n, cells) for n, cells in enumerate(batch, 1)]
                    await connection.copy_records_to_table(
                        "dataset_rows", schema_name="haulage", records=numbered
                    )
                    row_count += len(batch)
                await connection.execute(STATEMENTS["close_dataset"].sql, key, row_count)
                await connection.execute("commit")
            except asyncpg.PostgresError:
                # As `_borrowed` does after every other error: the server rolls back what its client
                # left, and asking it to could wait for long.
                connection.terminate()
                raise
        return Dataset(
            str(key), name, tuple(columns), row_count, dict(detected), sha256, created_at
        )

    async def get_dataset(self, dataset_id: str) -> Dataset:
        """See DBInterface."""
        row = await self._fetch_row("get_dataset", as_uuid(dataset_id))
        if row is None:
            raise DatasetNotFoundError(dataset_id)
        return _dataset(row)

    async def list_datasets(
        self, limit: int, *, before_id: str | None = None
    ) -> list[DatasetSummary]:
        """See DBInterface."""
        before = None if before_id is None else as_uuid(before_id)
        return await self._fetch_as(DatasetSummary, "list_datasets", limit, before)

    async def list_datasets_of_file(self, sha256: str) -> list[Dataset]:
        """See DBInterface."""
        rows = await self._fetch_all(
            "list_datasets_of_file", bytes.fromhex(sha256), DATASETS_OF_FILE
        )
        return [_dataset(row) for row in rows]

    async def list_dataset_rows(
        self, dataset_id: str, positions: Sequence[int], *, after_row: int = 0
    ) -> list[tuple[int, list[str]]]:
        """See DBInterface."""
        from_one = [position + 1 for position in positions]
        rows = await self._fetch_all(
            "list_dataset_rows", as_uuid(dataset_id), from_one, after_row, DATASET_PAGE_ROWS
        )
        return [(row["row_no"], row["cells"]) for row in rows]

    async def list_dataset_json(
        self, dataset_id: str, limit: int, *, after_row: int = 0
    ) -> list[JsonRow]:
        """See DBInterface."""
        key = as_uuid(dataset_id)
        return await self._fetch_as(
            JsonRow, "list_dataset_json", key, after_row, limit, MAX_PAGE_BYTES
        )

    async def delete_dataset(self, dataset_id: str) -> None:
        """See DBInterface."""
        try:
            row = await self._fetch_row("delete_dataset", as_uuid(dataset_id))
        except asyncpg.ForeignKeyViolationError:
            raise DatasetInUseError(dataset_id) from None
        if row is None:
            raise DatasetNotFoundError(dataset_id)
        if row["is_needed"]:
            raise DatasetInUseError(dataset_id)


def _dataset(row: asyncpg.Record) -> Dataset:
    return Dataset(
        id=row["id"],
        name=row["name"],
        columns=tuple(row["columns"]),
        row_count=row["row_count"],
        detected=json.loads(row["detected"]),
        sha256=row["sha256"],
        created_at=row["created_at"],
    )
