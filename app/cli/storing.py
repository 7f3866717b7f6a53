"""A file of answers as a dataset of the database that a service of our own works on."""

from dataclasses import asdict
from typing import Any

from app import __version__
from app.config import load_settings
from app.datasets.tables import Table
from app.db.interface import DBInterface


def stored_dataset(name: str, table: Table, rows: list[dict[str, str]]) -> str:
    """The id of the dataset with these rows of a table, which is stored where there is none yet.

    The same id for the same rows is what lets a job start from an earlier one's stages.
    """
    from app.main import on_database

    # As JSON gives it back; another version may read the same file differently.
    detected = {**asdict(table.detected), "read_by": f"haulage {__version__}"}
    detected["dropped_columns"] = list(table.detected.dropped_columns)

    async def find_or_store(db: DBInterface) -> str:
        wanted: tuple[Any, ...] = (tuple(table.columns), len(rows), detected)
        for known in await db.list_datasets_of_file(table.sha256):
            if (known.columns, known.row_count, known.detected) == wanted:
                return known.id
        cells = ([row[column] for column in table.columns] for row in rows)
        stored = await db.insert_dataset(
            name, table.columns, cells, sha256=table.sha256, detected=detected
        )
        return stored.id

    return on_database(load_settings(), find_or_store)
