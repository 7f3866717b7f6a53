"""A file of answers as a dataset of the database that a service of our own works on."""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app import __version__
from app.config import load_settings
from app.datasets.tables import Table
from app.db.interface import DBInterface


def stored_dataset(file: Path, table: Table, rows: list[dict[str, str]]) -> str:
    """The id of the dataset with these rows of the file, which is stored where there is none yet.

    The same id for the same rows is what lets a job start from an earlier one's stages.
    """
    from app.main import on_database

    with file.open("rb") as opened:
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    # As JSON gives it back; another version may read the same file differently.
    detected = {**asdict(table.detected), "read_by": f"haulage {__version__}"}
    detected["dropped_columns"] = list(table.detected.dropped_columns)

    async def find_or_store(db: DBInterface) -> str:
        wanted: tuple[Any, ...] = (tuple(table.columns), len(rows), detected)
        for known in await db.list_datasets_of_file(sha256):
            if (known.columns, known.row_count, known.detected) == wanted:
                return known.id
        cells = ([row[column] for column in table.columns] for row in rows)
        stored = await db.insert_dataset(
            file.name, table.columns, cells, sha256=sha256, detected=detected
        )
        return stored.id

    return on_database(load_settings(), find_or_store)
