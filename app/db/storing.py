"""A table that was read from a file as a dataset of the database, whoever brought the file."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from app import __version__
from app.datasets.tables import Table
from app.db.interface import DBInterface
from app.domain.sharing import Dataset


async def store_table(
    db: DBInterface,
    name: str,
    table: Table,
    rows: Sequence[Mapping[str, str]],
    facts: Mapping[str, Any] = MappingProxyType({}),
    *,
    submitted_by: str = "",
) -> Dataset:
    """Store rows of a table as a dataset of its own.

    Args:
        facts: what is known of the table beyond what was detected; JSON.
        submitted_by: the id of a key, "" for nobody known.
    """
    cells = ([row[column] for column in table.columns] for row in rows)
    detected = {**_detected(table), **facts}
    return await db.insert_dataset(
        name,
        table.columns,
        cells,
        sha256=table.sha256,
        detected=detected,
        submitted_by=submitted_by,
    )


async def find_or_store_table(
    db: DBInterface, name: str, table: Table, rows: Sequence[Mapping[str, str]]
) -> Dataset:
    """The dataset with these rows of a table, which is stored where there is none yet.

    The same one for the same rows is what lets a job start from an earlier one's stages.
    """
    wanted = (tuple(table.columns), len(rows), _detected(table))
    for known in await db.list_datasets_of_file(table.sha256):
        if (known.columns, known.row_count, known.detected) == wanted:
            return known
    return await store_table(db, name, table, rows)


def _detected(table: Table) -> dict[str, Any]:
    """As JSON gives it back; another version may read the same file differently."""
    return {
        **asdict(table.detected),
        "dropped_columns": list(table.detected.dropped_columns),
        "read_by": f"haulage {__version__}",
    }
