"""Races that only MongoDB has, or has in another shape: both orders, and who wins.

A claim waits for a moment for the end of a transaction that has changed its job, where PostgreSQL
passes over the row at once. And what one statement does there is several commands here: something
may happen in between.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from contract.mongo_store import MongoStore
from contract.steps import claimed, complete, keyed, new_job, new_node

from app.db.interface import DBInterface
from app.db.mongo import claiming, texts
from app.db.mongo.adapter import MongoJobsDB
from app.domain.errors import (
    DatasetInUseError,
    DatasetNotFoundError,
    IdempotencyKeyReusedError,
    IllegalTransitionError,
    JobDeletedError,
)
from app.domain.jobs import ClaimedJob, JobOptions, JobStatus
from app.domain.lifecycle import NodeLost, decide
from app.domain.submissions import Submission

LIMITS = [1, 3]


@pytest.fixture
async def store(mongo_database_url: str) -> AsyncIterator[MongoStore]:
    store = MongoStore(mongo_database_url)
    yield store
    await store.close()


@pytest.fixture
def db(store: MongoStore) -> MongoJobsDB:
    return store.connect()


@pytest.fixture
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims wait for as long as a test holds a job up."""
    monkeypatch.setattr(claiming, "HELD_SECONDS", 60.0)


def before_use(
    monkeypatch: pytest.MonkeyPatch,
    db: MongoJobsDB,
    name: str,
    act: Callable[[], None],
    use: int = 1,
) -> list[str]:
    """Have something happen before the adapter asks the collection for the n-th time from here on.

    Returns what has happened so far.
    """
    original, asked_for, happened = db._collection, list[str](), list[str]()

    def collection(asked: str) -> Any:
        asked_for.append(asked)
        if asked_for.count(name) == use and not happened:
            happened.append(name)
            act()
        return original(asked)

    monkeypatch.setattr(db, "_collection", collection)
    return happened


def at_once(url: str, call: Callable[[DBInterface], Awaitable[Any]]) -> None:
    """A whole call of somebody else, while nothing else runs here."""

    async def calling() -> None:
        other = MongoJobsDB(url, notify=False)
        await call(other)
        await other.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, calling()).result()


# -- claims -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("_patience")
@pytest.mark.parametrize("limit", LIMITS)
async def test_a_claim_that_waited_for_a_cancel_takes_what_comes_behind(
    store: MongoStore, db: MongoJobsDB, limit: int
) -> None:
    node = await new_node(db)
    head, following = await new_job(db), await new_job(db)
    claim = store.connect().claim_pending_jobs(node, limit)

    told, jobs = await store.in_turn(head, db.cancel_job(head), claim)

    assert told is JobStatus.CANCELLED
    assert [job.id for job in jobs] == [following]
    assert (await db.get_job(head)).status is JobStatus.CANCELLED
    assert await db.list_attempts(head) == []


@pytest.mark.usefixtures("_patience")
@pytest.mark.parametrize("limit", LIMITS)
async def test_a_cancel_that_met_a_claim_is_a_wish(
    store: MongoStore, db: MongoJobsDB, limit: int
) -> None:
    node = await new_node(db)
    job_id = await new_job(db)
    claim = store.connect().claim_pending_jobs(node, limit)

    jobs, told = await store.in_turn(job_id, claim, db.cancel_job(job_id))

    assert [job.id for job in jobs] == [job_id]
    assert told is JobStatus.RUNNING
    [row] = await db.list_running_jobs(node)
    assert row.cancel_requested


@pytest.mark.usefixtures("_patience")
@pytest.mark.parametrize("limit", LIMITS)
async def test_a_claim_takes_the_job_that_it_waited_for_when_nothing_became_of_it(
    store: MongoStore, db: MongoJobsDB, limit: int
) -> None:
    node = await new_node(db)
    head, following = await new_job(db), await new_job(db)

    async with store.holding(head):
        claiming = asyncio.create_task(db.claim_pending_jobs(node, limit))
        await store.until_blocked(1)

    assert [job.id for job in await claiming] == [head, following][:limit]


@pytest.mark.usefixtures("_patience")
@pytest.mark.parametrize("limit", LIMITS)
async def test_two_claims_that_wait_for_one_job_share_what_there_is(
    store: MongoStore, db: MongoJobsDB, limit: int
) -> None:
    node = await new_node(db)
    waiting = [await new_job(db) for _ in range(2 * limit)]
    others = [store.connect() for _ in range(2)]

    async with store.holding(waiting[0]):
        claims = [asyncio.create_task(other.claim_pending_jobs(node, limit)) for other in others]
        await store.until_blocked(2)
    shares = await asyncio.gather(*claims)

    assert sorted(job.id for share in shares for job in share) == waiting
    assert all(len(share) == limit for share in shares)
    for job_id in waiting:
        assert len(await db.list_attempts(job_id)) == 1


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_claim_takes_nothing_when_its_node_s_lease_ends_in_its_middle(
    store: MongoStore, db: MongoJobsDB, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    node = await new_node(db)
    job_id = await new_job(db)
    before_use(monkeypatch, db, "nodes", lambda: store.leave_lease(node, 0.5))
    happened = before_use(
        monkeypatch, db, "queues", lambda: store.wait_for_the_end_of_the_lease(node)
    )

    assert await db.claim_pending_jobs(node, limit) == []

    assert happened
    assert (await db.get_job(job_id)).status is JobStatus.PENDING


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_claim_that_passed_over_a_job_takes_nothing_of_it_afterwards(
    store: MongoStore, db: MongoJobsDB, limit: int
) -> None:
    node = await new_node(db)
    job_id = await new_job(db)

    async with store.holding(job_id):
        assert await db.claim_pending_jobs(node, limit) == []
        await store.until_blocked(0)

    assert (await db.get_job(job_id)).status is JobStatus.PENDING
    assert [job.id for job in await db.claim_pending_jobs(node, limit)] == [job_id]


# -- between a look and a change --------------------------------------------------------------


async def test_a_cancel_is_a_wish_when_a_claim_came_after_its_look(
    store: MongoStore,
    db: MongoJobsDB,
    mongo_database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = await new_node(db)
    job_id = await new_job(db)

    def claim() -> None:
        at_once(mongo_database_url, lambda other: other.claim_pending_jobs(node, 1))

    happened = before_use(monkeypatch, db, "jobs", claim, use=2)

    assert await db.cancel_job(job_id) is JobStatus.RUNNING

    assert happened
    assert (await db.get_job(job_id)).status is JobStatus.RUNNING


@pytest.mark.parametrize("rival", ["deletion", "retry"])
async def test_a_retry_is_refused_when_another_act_came_after_its_look(
    db: MongoJobsDB, mongo_database_url: str, monkeypatch: pytest.MonkeyPatch, rival: str
) -> None:
    job = await claimed(db)
    assert await complete(db, job)

    def act() -> None:
        at_once(
            mongo_database_url,
            lambda other: (
                other.delete_job(job.id) if rival == "deletion" else other.retry_job(job.id)
            ),
        )

    happened = before_use(monkeypatch, db, "jobs", act, use=2)

    with pytest.raises(JobDeletedError if rival == "deletion" else IllegalTransitionError):
        await db.retry_job(job.id)

    assert happened


# -- rescue -----------------------------------------------------------------------------------


async def test_a_rescue_does_nothing_when_the_node_renewed_between_its_looks(
    store: MongoStore, db: MongoJobsDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await new_node(db)
    job = await claimed(db, node)
    await store.end_lease(node)
    rescuer = store.connect()
    # A rescuer that was stopped here has an old picture of the node and looks at it by a new clock.
    happened = before_use(monkeypatch, rescuer, "nodes", lambda: store.leave_lease(node, 60.0))

    assert await rescuer.rescue_job(job.claim, decide(NodeLost(node), job)) is False

    assert happened
    assert (await db.get_job(job.id)).status is JobStatus.RUNNING
    assert await complete(db, job)


async def test_a_node_that_renews_while_its_job_is_rescued_stays_lost(
    store: MongoStore, db: MongoJobsDB
) -> None:
    node = await new_node(db)
    job = await claimed(db, node)
    await store.end_lease(node)
    rescue = store.connect().rescue_job(job.claim, decide(NodeLost(node), job))

    async with store.uncommitted(rescue) as rescuing:
        assert await db.renew_node(node) is False

    assert await rescuing is True
    assert (await db.get_job(job.id)).node_losses == 1


# -- retention --------------------------------------------------------------------------------


async def _ended(store: MongoStore, db: DBInterface) -> ClaimedJob:
    job = await claimed(db)
    assert await complete(db, job)
    await store.age(job.id, 100)
    return job


async def test_a_job_stays_when_its_retry_came_before_retention(
    store: MongoStore, db: MongoJobsDB
) -> None:
    job = await _ended(store, db)

    async with store.uncommitted(store.connect().retry_job(job.id)):
        assert await db.prune_jobs(JobStatus.COMPLETED, 50, 10) == 0

    assert await db.prune_jobs(JobStatus.COMPLETED, 50, 10) == 0
    assert (await db.get_job(job.id)).status is JobStatus.PENDING
    assert await db.get_payload(job.id) == "{}"


async def test_a_retry_finds_nothing_when_retention_came_first(
    store: MongoStore, db: MongoJobsDB
) -> None:
    job = await _ended(store, db)

    async with store.uncommitted(db.prune_jobs(JobStatus.COMPLETED, 50, 10)) as pruning:
        retrying = asyncio.create_task(store.connect().retry_job(job.id))
        await store.until_blocked(1)

    assert await pruning == 1
    with pytest.raises(JobDeletedError):
        await retrying
    assert await store.left_of(job.id) == set()


async def test_who_comes_to_retention_during_another_one_s_turn_is_told_0(
    store: MongoStore, db: MongoJobsDB
) -> None:
    await _ended(store, db)

    async with store.uncommitted(db.prune_jobs(JobStatus.COMPLETED, 50, 10)) as pruning:
        assert await store.connect().prune_jobs(JobStatus.COMPLETED, 50, 10) == 0

    assert await pruning == 1


# -- datasets ---------------------------------------------------------------------------------


async def _dataset(db: DBInterface) -> str:
    dataset = await db.insert_dataset("a", ["t"], [["x"]], sha256="ab" * 32, detected={})
    return dataset.id


def _naming(dataset_id: str) -> list[Submission]:
    return [Submission("{}", JobOptions(dataset_id=dataset_id))]


@pytest.mark.parametrize("begins", ["submitted", "revived"])
async def test_a_job_that_begins_to_need_a_dataset_first_keeps_it(
    store: MongoStore, db: MongoJobsDB, begins: str
) -> None:
    dataset_id = await _dataset(db)
    other = store.connect()
    if begins == "submitted":
        call: Any = other.insert_pending_jobs(_naming(dataset_id))
    else:
        job = await claimed(db, dataset_id=dataset_id)
        assert await complete(db, job)
        call = other.retry_job(job.id)

    async with store.uncommitted(call):
        removing = asyncio.create_task(db.delete_dataset(dataset_id))
        await store.until_blocked(1)

    with pytest.raises(DatasetInUseError):
        await removing
    assert (await db.get_dataset(dataset_id)).row_count == 1


@pytest.mark.parametrize("by", ["hand", "retention"])
async def test_a_job_that_names_a_dataset_too_late_is_refused(
    store: MongoStore, db: MongoJobsDB, by: str
) -> None:
    dataset_id = await _dataset(db)
    await store.age_all(100)
    removal: Any = db.delete_dataset(dataset_id) if by == "hand" else db.prune_datasets(50, 10)

    async with store.uncommitted(removal):
        submitting = asyncio.create_task(store.connect().insert_pending_jobs(_naming(dataset_id)))
        await store.until_blocked(1)

    with pytest.raises(DatasetNotFoundError):
        await submitting
    assert await store.count_datasets() == (0, 0)


async def test_a_revived_job_no_longer_names_the_dataset_that_went_before(
    store: MongoStore, db: MongoJobsDB
) -> None:
    dataset_id = await _dataset(db)
    job = await claimed(db, dataset_id=dataset_id)
    assert await complete(db, job)

    async with store.uncommitted(db.delete_dataset(dataset_id)):
        reviving = asyncio.create_task(store.connect().retry_job(job.id))
        await store.until_blocked(1)
    await reviving

    assert (await db.get_job(job.id)).status is JobStatus.PENDING
    assert await store.count_datasets() == (0, 0)


async def test_retention_leaves_a_dataset_that_a_submission_names_meanwhile(
    store: MongoStore, db: MongoJobsDB
) -> None:
    dataset_id = await _dataset(db)
    await store.age_all(100)

    async with store.uncommitted(store.connect().insert_pending_jobs(_naming(dataset_id))):
        assert await db.prune_datasets(50, 10) == 0

    assert await db.prune_datasets(50, 10) == 0
    assert (await db.get_dataset(dataset_id)).row_count == 1


# -- idempotency keys -------------------------------------------------------------------------


@pytest.mark.parametrize("is_batch", [False, True], ids=["single", "batch"])
async def test_the_second_of_two_submissions_with_one_key_gets_the_first_one_s_job(
    store: MongoStore, db: MongoJobsDB, *, is_batch: bool
) -> None:
    other = store.connect()
    async with store.uncommitted(other.insert_pending_jobs([Submission("{}", keyed())])) as first:
        second: asyncio.Task[Any] = asyncio.create_task(
            db.insert_pending_jobs([Submission("{}", keyed())])
            if is_batch
            else db.insert_pending_job({}, keyed())
        )
        await store.until_blocked(1)

    [theirs] = (await first).job_ids
    answer = await second
    assert (answer if not is_batch else answer.job_ids[0]) == theirs
    assert await db.claim_pending_jobs(await new_node(db), 9) != []
    assert await db.count_running_jobs() == 1


async def test_another_content_under_a_key_is_refused_when_it_waited_for_the_first(
    store: MongoStore, db: MongoJobsDB
) -> None:
    other = store.connect()
    async with store.uncommitted(other.insert_pending_jobs([Submission("{}", keyed())])):
        second = asyncio.create_task(db.insert_pending_job({"a": 1}, keyed(payload={"a": 1})))
        await store.until_blocked(1)

    with pytest.raises(IdempotencyKeyReusedError):
        await second


# -- texts in pieces --------------------------------------------------------------------------


async def test_a_checkpoint_is_read_whole_while_it_is_replaced(
    store: MongoStore, db: MongoJobsDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More pieces than the first answer of the server has.
    monkeypatch.setattr(texts, "PIECE_BYTES", 10)
    job = await claimed(db)
    versions = [f'"{letter * 1_900}"' for letter in "ab"]
    await db.save_checkpoint(job.claim, "s", versions[0])
    reader = store.connect()
    are_read = asyncio.Event()

    async def replace() -> None:
        n = 0
        while not are_read.is_set():
            n += 1
            await db.save_checkpoint(job.claim, "s", versions[n % 2])

    async with asyncio.TaskGroup() as group:
        group.create_task(replace())
        for _ in range(100):
            read = await reader.load_checkpoint(job.id, "s")
            assert read in versions
        are_read.set()
