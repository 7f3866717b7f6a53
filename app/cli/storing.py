"""A file of answers as a dataset of the database that a service of our own works on."""

from app.config import load_settings
from app.datasets.tables import Table
from app.db.interface import DBInterface
from app.db.storing import find_or_store_table


def stored_dataset(name: str, table: Table, rows: list[dict[str, str]]) -> str:
    """The id of the dataset with these rows of a table, which is stored where there is none yet."""
    from app.main import on_database

    async def find_or_store(db: DBInterface) -> str:
        return (await find_or_store_table(db, name, table, rows)).id

    return on_database(load_settings(), find_or_store)
