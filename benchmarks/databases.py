"""What PostgreSQL and MongoDB do a second through the same interface, by turns in one run.

    PYTHONPATH=.:tests python benchmarks/databases.py

A durable cluster of PostgreSQL, and a durable replica set of one node of the MongoDB that the
tests use. Rounds of both take turns, so that what else the machine does meets both alike. Workers
are tasks of one process, each claims ten jobs and takes them one by one through their whole life:
start, a stage, a result. No process is started for them.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

from support import mongo

from app.db.ids import new_id
from app.db.interface import DBInterface
from app.db.mongo import upgrading
from app.db.mongo.adapter import MongoJobsDB
from app.db.postgres.adapter import PostgresJobsDB
from app.domain.jobs import NodeInfo, Progress
from app.domain.lifecycle import Completed, decide
from app.domain.submissions import Submission
from benchmarks.harness.figures import percentile, show_machine
from benchmarks.harness.running import database

ROUNDS: Final = 3
SUBMITTERS: Final = 32
SUBMIT_SECONDS: Final = 2.0
JOBS: Final = 500
WORKERS: Final = 4
BATCH: Final = 10

_Answer = TypeVar("_Answer")
_Build = Callable[[], DBInterface]


def main() -> None:
    """Print for each store jobs a second and milliseconds, and the ratio of the two."""
    with _stores() as stores:
        found: dict[str, dict[str, list[float]]] = {name: {} for name in stores}
        for _ in range(ROUNDS):
            for name, build in stores.items():
                for what, values in asyncio.run(_round(build)).items():
                    found[name].setdefault(what, []).extend(values)
        show_machine()
    for what in found["PostgreSQL"]:
        for name, figures in found.items():
            values = figures[what]
            print(
                f"{what:<34} {name:<11} p50 {statistics.median(values):8.2f}  "
                f"p99 {percentile(values, 0.99):8.2f}   ({len(values)} samples)"
            )


@contextmanager
def _stores() -> Iterator[dict[str, _Build]]:
    with database() as postgres, mongo.running() as server, server.database() as other:
        upgrading.upgrade(other.url)
        yield {
            "PostgreSQL": partial(PostgresJobsDB, postgres.url, notify=False),
            "MongoDB": partial(MongoJobsDB, other.url, notify=False),
        }


async def _round(build: _Build) -> dict[str, list[float]]:
    db = build()
    try:
        submissions = await _submit(db)
        await _drain(db)
        await db.insert_pending_jobs([Submission('{"n": 1}')] * JOBS)
        lives, claims, ends = await _live(db)
    finally:
        await db.close()
    return {
        f"submissions a second, {SUBMITTERS} at once": [len(submissions) / SUBMIT_SECONDS],
        "a submission, ms": submissions,
        f"lives a second, {WORKERS} workers": [lives],
        f"a claim of {BATCH}, ms": claims,
        "an end with its result, ms": ends,
    }


async def _submit(db: DBInterface) -> list[float]:
    waits: list[float] = []
    await db.insert_pending_job({"n": 1})
    end = time.perf_counter() + SUBMIT_SECONDS

    async def submit() -> None:
        while time.perf_counter() < end:
            await _timed(waits, db.insert_pending_job({"n": 1}))

    await asyncio.gather(*(submit() for _ in range(SUBMITTERS)))
    return waits


async def _live(db: DBInterface) -> tuple[float, list[float], list[float]]:
    claims: list[float] = []
    ends: list[float] = []

    async def work() -> None:
        node = await _node(db)
        while jobs := await _timed(claims, db.claim_pending_jobs(node, BATCH)):
            for job in jobs:
                await db.report_started(job.claim, 1)
                await db.report_progress(job.claim, Progress(0.5, "half"), is_milestone=True)
                verdict = decide(Completed('{"done": true}'), job)
                assert await _timed(ends, db.finish_job(job.claim, verdict))

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(WORKERS)))
    return JOBS / (time.perf_counter() - began), claims, ends


async def _drain(db: DBInterface) -> None:
    """What was submitted runs somewhere and is in nobody's way."""
    node = await _node(db)
    while await db.claim_pending_jobs(node, 1_000):
        pass


async def _node(db: DBInterface) -> str:
    node = NodeInfo(new_id(), "benchmark", 1, BATCH, 3_600.0, "0")
    await db.register_node(node)
    return node.id


async def _timed(waits: list[float], call: Awaitable[_Answer]) -> _Answer:
    began = time.perf_counter()
    answer = await call
    waits.append((time.perf_counter() - began) * 1_000)
    return answer


if __name__ == "__main__":
    main()
