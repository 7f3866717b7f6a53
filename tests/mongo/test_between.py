"""What happens to MongoDB between two commands of one call: somebody else's change, put there."""

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from contract.steps import claimed, complete, new_job, new_node
from pymongo import AsyncMongoClient
from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    CommandStartedEvent,
    CommandSucceededEvent,
)
from support import mongo

from app.db.mongo import connections, texts
from app.db.mongo.adapter import MongoJobsDB
from app.db.mongo.instants import NOW
from app.domain.jobs import JobOptions
from app.domain.submissions import Submission

HOUR = 3_600_000_000
KEYED: dict[str, Any] = {"submitted_by": "s", "idempotency_key": "k", "fingerprint": b"f"}


class Between(CommandListener):
    """Does something right before a command about a collection leaves for the server."""

    def __init__(self) -> None:
        self._wanted: list[tuple[str, str, Callable[[], object]]] = []

    def before(self, command: str, collection: str, act: Callable[[], object]) -> None:
        """Do this once, before the next such command."""
        self._wanted.append((command, collection, act))

    @property
    def is_done(self) -> bool:
        return not self._wanted

    def started(self, event: CommandStartedEvent) -> None:
        name = event.command_name
        about = event.command["collection" if name == "getMore" else name]
        for wanted in self._wanted:
            if wanted[:2] == (name, about):
                self._wanted.remove(wanted)
                wanted[2]()
                return

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Of no interest."""

    def failed(self, event: CommandFailedEvent) -> None:
        """Of no interest."""


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Between:
    listener = Between()
    listening = partial(AsyncMongoClient, event_listeners=[listener])
    monkeypatch.setattr(connections, "AsyncMongoClient", listening)
    return listener


@pytest.fixture
async def db(mongo_database_url: str, between: Between) -> AsyncIterator[MongoJobsDB]:
    db = MongoJobsDB(mongo_database_url, default_pipeline="by-default", notify=False)
    yield db
    await db.close()


@pytest.fixture
def documents(mongo_database_url: str) -> Iterator[Any]:
    with mongo.client(mongo_database_url) as opened:
        yield opened.get_default_database()


async def test_a_job_that_others_gave_back_for_later_is_not_claimed_with_the_rest(
    db: MongoJobsDB, documents: Any, between: Between
) -> None:
    node, first, second = await new_node(db), await new_job(db), await new_job(db)
    later = [{"$set": {"run_at": {"$add": [NOW, HOUR]}}}]
    between.before("update", "jobs", lambda: documents["jobs"].update_one({"_id": first}, later))

    jobs = await db.claim_pending_jobs(node, 5)

    assert between.is_done
    assert [job.id for job in jobs] == [second]
    assert (await db.get_job(first)).claim_no == 0


@pytest.mark.parametrize("is_batch", [False, True], ids=["single", "batch"])
async def test_a_key_that_somebody_takes_between_look_and_insert_finds_their_job(
    db: MongoJobsDB, documents: Any, between: Between, *, is_batch: bool
) -> None:
    theirs = await new_job(db, {}, **KEYED)
    document = documents["jobs"].find_one_and_delete({"_id": theirs})
    between.before("update", "jobs", lambda: documents["jobs"].insert_one(document))

    if is_batch:
        receipt = await db.insert_pending_jobs([Submission("{}", JobOptions(**KEYED))])
        assert receipt.job_ids == (theirs,)
        assert receipt.replayed == {0}
    else:
        assert await new_job(db, {}, **KEYED) == theirs

    assert between.is_done
    assert documents["jobs"].count_documents({}) == 1


def _text(letter: str, pieces: int) -> str:
    """Nothing that could be packed into fewer pieces than this."""
    digits = "".join(f"{n * 2_654_435_761 % 2**24:06x}" for n in range(pieces * 200))
    return f'"{letter}{digits}"'


# More of them than the server answers with at once.
PIECES = 150


async def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_as_it_was(
    db: MongoJobsDB, documents: Any, between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "PIECE_BYTES", 400)
    job, other = await claimed(db), await claimed(db)
    before, after = _text("a", PIECES), _text("b", PIECES)
    await db.save_checkpoint(other.claim, "s", after)
    await db.save_checkpoint(job.claim, "s", before)
    between.before("getMore", "job_checkpoints", partial(_swap, documents, job.id, other.id))

    read = await db.load_checkpoint(job.id, "s")

    assert between.is_done
    assert read == before
    assert await db.load_checkpoint(job.id, "s") == after


async def test_a_result_whose_job_is_deleted_while_it_is_read_is_read_as_it_was(
    db: MongoJobsDB, documents: Any, between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "PIECE_BYTES", 400)
    job, result = await claimed(db), _text("a", PIECES)
    assert await complete(db, job, result)
    between.before(
        "getMore", "job_results", lambda: documents["job_results"].delete_many({"job_id": job.id})
    )

    read = await db.get_result(job.id)

    assert between.is_done
    assert read == result.encode()


async def test_a_dataset_that_goes_while_it_is_read_gives_whole_pages_or_none(
    db: MongoJobsDB, documents: Any, between: Between
) -> None:
    rows = [[str(n)] for n in range(10)]
    dataset = await db.insert_dataset("a", ["n"], rows, sha256="0" * 64, detected={})

    def remove_half() -> None:
        documents["datasets"].update_one({"_id": dataset.id}, {"$set": {"is_whole": False}})
        documents["dataset_rows"].delete_many({"row_no": {"$lte": 5}})

    between.before("find", "dataset_rows", remove_half)
    page = await db.list_dataset_rows(dataset.id, [0])

    assert between.is_done
    assert [cells for _, cells in page] == rows
    # From now on there is nothing, though some rows are still there.
    assert documents["dataset_rows"].count_documents({}) == 5
    assert await db.list_dataset_rows(dataset.id, [0]) == []
    assert await db.list_dataset_json(dataset.id, 10) == []


@pytest.mark.parametrize("step", ["delete_dataset", "prune_datasets", "insert_dataset"])
async def test_retention_clears_away_what_died_in_the_middle(
    db: MongoJobsDB, documents: Any, step: str
) -> None:
    dataset = await db.insert_dataset("a", ["n"], [["1"]], sha256="0" * 64, detected={})
    # As each of them leaves it that is killed between two of its writes.
    is_begun = step == "insert_dataset"
    documents["datasets"].update_one(
        {"_id": dataset.id},
        [{"$set": {"is_whole": False, "created_at": {"$subtract": [NOW, 2 * HOUR]}}}],
    )
    fresh = await db.insert_dataset("b", ["n"], [["1"]], sha256="0" * 64, detected={})
    documents["datasets"].update_one({"_id": fresh.id}, {"$set": {"is_whole": not is_begun}})

    await db.prune_datasets(10 * HOUR, 10)

    # What is young may still be somebody's.
    assert [d["_id"] for d in documents["datasets"].find()] == [fresh.id]
    assert [r["dataset_id"] for r in documents["dataset_rows"].find()] == [fresh.id]


def _swap(documents: Any, job_id: str, other_id: str) -> None:
    checkpoints = documents["job_checkpoints"]
    checkpoints.delete_many({"job_id": job_id})
    checkpoints.update_many({"job_id": other_id}, {"$set": {"job_id": job_id}})
