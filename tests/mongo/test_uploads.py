"""Uploads to MongoDB that end before they are whole."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from support import mongo
from support.mongo import Mongod
from support.processes import freeze

from app.db.mongo import datasets, upgrading
from app.db.mongo.adapter import MongoJobsDB
from app.domain.errors import DatasetError


@pytest.fixture(scope="module")
def set_of_one() -> Iterator[tuple[str, Mongod]]:
    with mongo.replica_set(1) as (url, [server]):
        upgrading.upgrade(url)
        yield url, server


@pytest.mark.parametrize("end", ["cancelled", "refused"])
async def test_an_upload_ends_at_once_and_as_it_was_ended_while_the_server_is_silent(
    set_of_one: tuple[str, Mongod], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    url, server = set_of_one
    monkeypatch.setattr(datasets, "CLEAR_SECONDS", 0.5)
    assert server.process is not None
    pid = server.process.pid
    is_silent = asyncio.Event()

    def rows() -> Iterator[list[str]]:
        yield from (["x"] for _ in range(datasets.BATCH_ROWS))
        freeze(pid)
        is_silent.set()
        if end == "refused":
            yield ["too", "wide"]
        yield from (["x"] for _ in range(datasets.BATCH_ROWS))

    db = MongoJobsDB(url, notify=False)
    try:
        writing = asyncio.ensure_future(
            db.insert_dataset("a", ["c"], rows(), sha256="0" * 64, detected={})
        )
        await is_silent.wait()
        if end == "cancelled":
            writing.cancel()
        with pytest.raises((asyncio.CancelledError, DatasetError)) as caught:
            async with asyncio.timeout(5):
                await writing
        expected = asyncio.CancelledError if end == "cancelled" else DatasetError
        assert caught.type is expected
    finally:
        os.kill(pid, signal.SIGCONT)
        await db.close()

    # What it left is nobody's, and goes with a later upload.
    with mongo.client(url) as opened:
        database = opened.get_default_database("haulage")
        assert database["datasets"].count_documents({"is_whole": True}) == 0
        database["datasets"].update_many({}, {"$inc": {"created_at": -7_200_000_000}})
        later = MongoJobsDB(url, notify=False)
        kept = await later.insert_dataset("b", ["c"], [["x"]], sha256="0" * 64, detected={})
        assert [row["dataset_id"] for row in database["dataset_rows"].find()] == [kept.id]
        await later.delete_dataset(kept.id)
        await later.close()
