"""Many at once on MongoDB: processes that claim the same jobs, and primaries that die meanwhile."""

import asyncio
import multiprocessing
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import pytest
from contract.steps import complete, new_node
from support import mongo
from support.mongo import Mongod
from support.waiting import eventually

from app.db.grouping import MAX_GROUP_ROWS
from app.db.ids import new_id
from app.db.interface import DBInterface
from app.db.mongo import upgrading
from app.db.mongo.adapter import MongoJobsDB
from app.db.mongo.connections import DEFAULT_DATABASE
from app.domain.errors import DatabaseUnavailableError
from app.domain.jobs import AttemptOutcome, JobOptions, JobStatus
from app.domain.lifecycle import Released, decide
from app.domain.managing import JobCount, JobFilter
from app.domain.submissions import Submission

_Answer = TypeVar("_Answer")

COMPLETED = JobFilter(statuses=(JobStatus.COMPLETED,))


# -- claims by processes ----------------------------------------------------------------------


def _claim_all(url: str, found: "multiprocessing.SimpleQueue[list[str]]") -> None:
    async def claim() -> list[str]:
        db = MongoJobsDB(url, notify=False, max_connections=2)
        node, mine = await new_node(db), list[str]()
        while claimed := await db.claim_pending_jobs(node, 10):
            mine += [job.id for job in claimed]
        await db.close()
        return mine

    found.put(asyncio.run(claim()))


@pytest.mark.slow
async def test_eight_processes_claim_two_thousand_jobs_once_each(mongo_database_url: str) -> None:
    db = MongoJobsDB(mongo_database_url, notify=False)
    ids: list[str] = []
    for _ in range(2):
        ids += (await db.insert_pending_jobs([Submission("{}")] * 1_000)).job_ids

    context = multiprocessing.get_context("spawn")
    found: multiprocessing.SimpleQueue[list[str]] = context.SimpleQueue()
    processes = [
        context.Process(target=_claim_all, args=(mongo_database_url, found)) for _ in range(8)
    ]
    for process in processes:
        process.start()
    shares = [await asyncio.to_thread(found.get) for _ in processes]
    for process in processes:
        process.join()

    assert sorted(job_id for share in shares for job_id in share) == sorted(ids)
    assert sum(1 for share in shares if share) > 1
    assert await db.count_running_jobs() == len(ids)
    for job_id in ids[::100]:
        assert [attempt.claim_no for attempt in await db.list_attempts(job_id)] == [1]
    await db.close()


# -- a queue that never empties ---------------------------------------------------------------


async def test_submissions_without_a_pause_outlast_the_bound_of_a_single_one(
    mongo_database_url: str,
) -> None:
    """More callers than a group takes: there is always somebody left for the next one."""
    bound = 3.0
    db = MongoJobsDB(mongo_database_url, command_timeout_seconds=bound)
    loop = asyncio.get_running_loop()
    end = loop.time() + 1.5 * bound

    async def submit() -> int:
        count = 0
        while loop.time() < end:
            await db.insert_pending_job({"n": count})
            count += 1
        return count

    counts = await asyncio.gather(*(submit() for _ in range(3 * MAX_GROUP_ROWS)))

    assert min(counts) > 0
    await db.close()


# -- lost primaries ---------------------------------------------------------------------------

JOBS = 1_500
SUBMITTERS = 4
CLAIMERS = 4


async def insisting(call: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """What `call` returns, made again for as long as the store is away."""
    while True:
        try:
            return await call()
        except DatabaseUnavailableError:
            await asyncio.sleep(0.05)


async def _submit(db: DBInterface, numbers: range) -> None:
    for n in numbers:
        # The id is ours: repeated after a lost answer it is the same job.
        options = JobOptions(job_id=new_id())
        await insisting(partial(db.insert_pending_job, {"n": n}, options))


async def _work(db: DBInterface, results: Counter[str]) -> None:
    node = await insisting(lambda: new_node(db))
    while await insisting(lambda: db.count_jobs(COMPLETED)) != JobCount(JOBS, is_exact=True):
        claimed = []
        with suppress(DatabaseUnavailableError):
            claimed = await db.claim_pending_jobs(node, 5)
        for job in claimed:
            results[job.id] += await insisting(partial(complete, db, job, f'"{job.id}"'))
        if not claimed:
            # What was claimed although the answer got lost is given back, as a scheduler does: each
            # time that it looks, since a new primary may learn of such a claim a moment later.
            for lost in await insisting(lambda: db.list_running_jobs(node)):
                verdict = decide(Released(), lost)
                await insisting(partial(db.finish_job, lost.claim, verdict))
            await asyncio.sleep(0.02)


def _primary(nodes: list[Mongod]) -> Mongod | None:
    for node in nodes:
        if node.process is None:
            continue
        url = f"mongodb://{node.address}/?directConnection=true"
        with mongo.client(url, serverSelectionTimeoutMS=2_000) as opened:
            if opened.admin.command("hello").get("isWritablePrimary"):
                return node
    return None


@asynccontextmanager
async def _adapters(url: str, count: int) -> AsyncIterator[list[MongoJobsDB]]:
    adapters = [MongoJobsDB(url, command_timeout_seconds=10.0) for _ in range(count)]
    try:
        yield adapters
    finally:
        for db in adapters:
            await db.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_nothing_is_lost_or_doubled_when_the_primary_is_killed_twice_under_load() -> None:
    with mongo.replica_set(3, electionTimeoutMillis=2_000, heartbeatIntervalMillis=500) as (
        url,
        nodes,
    ):
        upgrading.upgrade(url)
        results: Counter[str] = Counter()
        async with _adapters(url, SUBMITTERS + CLAIMERS) as adapters:
            async with asyncio.TaskGroup() as group:
                for n, db in enumerate(adapters[:SUBMITTERS]):
                    group.create_task(_submit(db, range(n, JOBS, SUBMITTERS)))
                for db in adapters[SUBMITTERS:]:
                    group.create_task(_work(db, results))
                for share in (1 / 5, 1 / 2):
                    await _until_completed(adapters[0], int(JOBS * share))
                    await asyncio.to_thread(_kill_primary, nodes)

            [db, *_] = adapters
            assert await db.count_jobs(JobFilter()) == JobCount(JOBS, is_exact=True)
            # An end whose answer got lost is told as settled by somebody: never twice by one.
            assert set(results.values()) <= {0, 1}
            assert len(results) == JOBS
            for job_id in results:
                outcomes = Counter(a.outcome for a in await db.list_attempts(job_id))
                assert outcomes[AttemptOutcome.COMPLETED] == 1
                assert outcomes.keys() <= {AttemptOutcome.COMPLETED, AttemptOutcome.RELEASED}
                assert await db.get_result(job_id) == f'"{job_id}"'.encode()


async def _until_completed(db: DBInterface, count: int) -> None:
    async def are_completed() -> bool:
        return (await insisting(lambda: db.count_jobs(COMPLETED))).count >= count

    await eventually(are_completed, f"{count} completed jobs", 120)


def _kill_primary(nodes: list[Mongod]) -> None:
    """Kill the primary without a warning, and start it again once another one has taken over."""
    killed = _primary(nodes)
    assert killed is not None
    killed.stop(signal.SIGKILL)
    while _primary(nodes) is None:
        pass
    killed.start()
    killed.wait_until_it_answers()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_claim_is_answered_when_a_majority_takes_longer_than_a_held_job_may() -> None:
    with mongo.replica_set(3, electionTimeoutMillis=5_000) as (url, nodes):
        upgrading.upgrade(url)
        primary = _primary(nodes)
        assert primary is not None
        others = [node.process for node in nodes if node is not primary and node.process]
        async with _adapters(url, 1) as [db]:
            node_id = await new_node(db)
            for limit in (1, 3):
                ids = [await db.insert_pending_job({}) for _ in range(limit)]
                with _stopped(others):
                    claiming = asyncio.create_task(db.claim_pending_jobs(node_id, limit))
                    # The server has given up the claim, and what it did is written once more.
                    given_up = {"_id": {"$in": ids}, "status": "running", "writes": 1}
                    await eventually(partial(_are, primary, given_up, limit), "a claim given up")
                assert [job.id for job in await claiming] == ids
                assert await db.count_running_jobs(node_id) == limit
                for job in claiming.result():
                    assert await complete(db, job)


@contextmanager
def _stopped(processes: "Sequence[subprocess.Popen[bytes]]") -> Iterator[None]:
    """Processes that do nothing within the block."""
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)


async def _are(node: Mongod, which: dict[str, Any], count: int) -> bool:
    """Whether the node has so many such jobs, whichever other node knows of them."""
    with mongo.client(f"mongodb://{node.address}/?directConnection=true") as opened:
        return opened[DEFAULT_DATABASE]["jobs"].count_documents(which) == count
