"""An uploaded file becomes a dataset: read, stored, and a first look at it.

This is done aside (see `app.api.offloading`), so nothing of the web framework is imported here.
"""

import asyncio
from dataclasses import asdict
from typing import Any, BinaryIO, Final

from app.datasets.answers import likely_columns
from app.datasets.tables import MAX_BYTES, Table, read_table
from app.db.interface import DBInterface
from app.db.storing import store_table
from app.domain.errors import DatasetError

PREVIEW_ROWS: Final = 20
PREVIEW_CHARACTERS: Final = 200
"""Of a cell."""


async def take_in(
    db: DBInterface,
    file: BinaryIO,
    *,
    name: str,
    file_name: str,
    header_rows: int | None,
    sheet: str | None,
    encoding: str | None,
    submitted_by: str,
) -> dict[str, Any]:
    """Store the table of `file`; answers the dataset's fields and `preview`, a list of rows.

    Args:
        name: of the dataset.
        file_name: its ending may tell the format.
        submitted_by: the id of a key, "" for nobody known.

    Raises:
        DatasetError: the file cannot be read, or nothing is in it.
        TooLargeError: it holds more than a dataset may.
        InvalidJsonError: a name could not come back unchanged.
    """

    def read() -> Table:
        file.seek(0)
        return read_table(
            file.read(MAX_BYTES + 1),
            name=file_name,
            header_rows=header_rows,
            sheet=sheet,
            encoding=encoding,
        )

    table = await asyncio.to_thread(read)
    if not table.rows:
        raise DatasetError("there is a header and no row below it")
    if not table.columns:
        dropped = ", ".join(map(repr, table.detected.dropped_columns))
        raise DatasetError(f"nothing is left without what identifies people: {dropped}")
    text_column, id_column = likely_columns(table)
    facts = {"text_column": text_column, "id_column": id_column}
    dataset = await store_table(db, name, table, table.rows, facts, submitted_by=submitted_by)
    fields = asdict(dataset)
    fields["created_at"] = dataset.created_at and dataset.created_at.isoformat()
    preview = [
        [row[column][:PREVIEW_CHARACTERS] for column in table.columns]
        for row in table.rows[:PREVIEW_ROWS]
    ]
    return {**fields, "preview": preview}
