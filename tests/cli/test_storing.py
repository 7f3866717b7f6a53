"""Files of answers as datasets, in a real database."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.sql import rows, value

from app.cli.storing import stored_dataset
from app.datasets.tables import read_table
from app.db import storing
from app.db.postgres.adapter import PostgresJobsDB
from app.domain.errors import DatabaseUnavailableError, DatasetError

TEXT = "id,e-mail,text\n1,a@b.example,kind\n2,c@d.example,slow\n3,,\n"


@pytest.fixture
def file(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HAULAGE_DATABASE_URL", database_url)
    file = tmp_path / "answers.csv"
    file.write_text(TEXT)
    return file


def store(file: Path, limit: int | None = None) -> str:
    table = read_table(file)
    return stored_dataset(file.name, table, table.rows[:limit])


def test_a_file_is_stored_without_what_identifies_people(file: Path, database_url: str) -> None:
    dataset_id = store(file)

    [dataset] = rows(
        database_url, "select name, columns, row_count, detected from haulage.datasets"
    )
    assert (dataset["name"], dataset["columns"], dataset["row_count"]) == (
        "answers.csv",
        ["id", "text"],
        3,
    )
    assert '"dropped_columns": ["e-mail"]' in dataset["detected"]
    stored = rows(database_url, "select dataset_id::text as id, cells from haulage.dataset_rows")
    assert [row["cells"] for row in stored] == [["1", "kind"], ["2", "slow"], ["3", ""]]
    assert {row["id"] for row in stored} == {dataset_id}


def test_a_file_is_stored_once_as_long_as_it_is_read_alike(
    file: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = store(file)
    assert store(file) == first
    limited = store(file, limit=2)
    assert limited != first
    assert store(file, limit=2) == limited
    monkeypatch.setattr(storing, "__version__", "999")
    assert store(file) not in {first, limited}
    file.write_text(TEXT.replace("kind", "rude"))
    assert store(file) not in {first, limited}

    assert value(database_url, "select count(*) from haulage.datasets") == 4


def test_two_files_that_can_be_read_once_are_two_datasets(tmp_path: Path, file: Path) -> None:
    fifo = tmp_path / "63"
    os.mkfifo(fifo)

    def piped(text: str) -> str:
        with ThreadPoolExecutor(1) as writer:
            writer.submit(fifo.write_text, text)
            return store(fifo)

    first = piped(TEXT)
    assert piped(TEXT.replace("kind", "rude")) != first
    assert piped(TEXT) == store(file) == first


def test_what_is_stored_is_what_was_read(file: Path, database_url: str) -> None:
    async def read() -> None:
        db = PostgresJobsDB(database_url, notify=False)
        try:
            dataset = await db.get_dataset(store_id)
            cells = await db.list_dataset_rows(store_id, [1])
        finally:
            await db.close()
        assert dataset.columns == ("id", "text")
        assert [row for _, row in cells] == [["kind"], ["slow"], [""]]

    store_id = store(file)
    asyncio.run(read())


def test_a_cell_that_cannot_be_stored_is_told_with_its_place(file: Path, database_url: str) -> None:
    table = read_table(file)
    rows = [{**table.rows[0]}, {**table.rows[1], "text": "a\x00b"}]

    with pytest.raises(DatasetError, match="row 2, column 'text'"):
        stored_dataset("answers.csv", table, rows)

    assert value(database_url, "select count(*) from haulage.datasets") == 0


def test_a_database_that_is_away_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAULAGE_DATABASE_URL", "postgresql://user:s3cret@127.0.0.1:1/db")

    with pytest.raises(DatabaseUnavailableError) as caught:
        store(file)
    assert "s3cret" not in str(caught.value)
