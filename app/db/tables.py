"""What a table has to be like to be stored as a dataset, whatever the store; it stores nothing."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from app.domain.errors import DatasetError, TooLargeError
from app.domain.json_values import check_storable, dump_storable, storable_text
from app.domain.sharing import (
    MAX_CELL_CHARACTERS,
    MAX_DATASET_BYTES,
    MAX_DATASET_COLUMNS,
    MAX_DATASET_HEADER_BYTES,
    MAX_DATASET_ROW_BYTES,
    MAX_DATASET_ROWS,
    MAX_DETECTED_BYTES,
)


def check_head(name: str, columns: Sequence[str], detected: Mapping[str, Any]) -> str:
    """`detected` as JSON text; see `DatasetStore.insert_dataset` for the errors."""
    check_storable({"name": name, "columns": list(columns)})
    if len(columns) > MAX_DATASET_COLUMNS:
        raise DatasetError(f"{len(columns)} columns; at most {MAX_DATASET_COLUMNS} are stored")
    size_bytes = sum(len(text.encode()) for text in (name, *columns))
    if size_bytes > MAX_DATASET_HEADER_BYTES:
        raise TooLargeError("the columns of a dataset", size_bytes, MAX_DATASET_HEADER_BYTES)
    return dump_storable(dict(detected), "detected", MAX_DETECTED_BYTES)


def checked_rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[list[str]]:
    """The rows as they come, each held to the bounds."""
    size_bytes = 0
    for row_no, row in enumerate(rows, start=1):
        if row_no > MAX_DATASET_ROWS:
            raise DatasetError(f"more than {MAX_DATASET_ROWS} rows; split the file")
        if len(row) != len(columns):
            raise DatasetError(f"row {row_no}: {len(row)} cells under {len(columns)} columns")
        row_bytes = 0
        for column, cell in zip(columns, row, strict=True):
            if len(cell) > MAX_CELL_CHARACTERS:
                raise DatasetError(
                    f"row {row_no}, column {column!r}: a cell of {len(cell)} characters; "
                    f"at most {MAX_CELL_CHARACTERS}"
                )
            if storable_text(cell, len(cell)) != cell:
                raise DatasetError(
                    f"row {row_no}, column {column!r}: NUL or a lone surrogate, which cannot be "
                    "stored"
                )
            row_bytes += len(cell.encode())
        if row_bytes > MAX_DATASET_ROW_BYTES:
            raise TooLargeError(f"row {row_no} of a dataset", row_bytes, MAX_DATASET_ROW_BYTES)
        size_bytes += row_bytes
        if size_bytes > MAX_DATASET_BYTES:
            raise TooLargeError(f"a dataset up to row {row_no}", size_bytes, MAX_DATASET_BYTES)
        yield list(row)
