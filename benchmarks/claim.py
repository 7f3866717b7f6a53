"""What one claim costs with few and with many waiting jobs, for batches of 1, 10 and 100.

    python benchmarks/claim.py

Through the adapter, one connection, one statement per claim: the way a node does it.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable

from app.db.ids import new_id
from app.db.postgres.adapter import PostgresJobsDB
from app.domain.jobs import NodeInfo
from benchmarks.harness.figures import show, show_machine
from benchmarks.harness.running import Database, database

WAITING = (3_000, 200_000)
BATCHES = (1, 10, 100)
CLAIMS = 60
WARM_UP = 5
INSERT = """
with job as (
    insert into haulage.jobs (id, pipeline, priority)
    select gen_random_uuid(), 'demo-echo', n % 3 from generate_series(1, $1::int) n
    returning id
)
insert into haulage.job_payloads (job_id, payload) select id, '{"n": 1}' from job
"""
# What was claimed waits again, so that each batch size meets the same table.
GIVE_BACK = """
update haulage.jobs set status = 'pending', node_id = null where status = 'running'
"""


def main() -> None:
    """Print milliseconds per claim, microseconds per job, and the ratio of the table sizes."""
    medians: dict[tuple[int, int], float] = {}
    with database() as db:
        for waiting in WAITING:
            db.run("truncate haulage.jobs cascade")
            db.run(INSERT, waiting)
            for batch in BATCHES:
                db.run(GIVE_BACK)
                db.run("vacuum analyze haulage.jobs")
                values = asyncio.run(_claim(db, batch, min(CLAIMS, waiting // batch - WARM_UP)))
                show(f"{waiting:>7,} waiting, claim of {batch}", values)
                medians[waiting, batch] = statistics.median(values)
        show_machine()
    few, many = WAITING
    for batch in BATCHES:
        ratio = medians[many, batch] / medians[few, batch]
        cost = medians[many, batch] / batch * 1_000
        print(
            f"claim of {batch:>3}: {many:,} against {few:,} waiting {ratio:.2f} times; "
            f"{cost:,.0f} us per job"
        )


async def _claim(db: Database, batch: int, count: int) -> list[float]:
    adapter = PostgresJobsDB(db.url, max_connections=1, notify=False)
    node = NodeInfo(new_id(), "bench", 1, 1_000, 600.0, "0")
    try:
        await adapter.register_node(node)
        for _ in range(WARM_UP):
            await adapter.claim_pending_jobs(node.id, batch)
        return [
            await _milliseconds(adapter.claim_pending_jobs(node.id, batch)) for _ in range(count)
        ]
    finally:
        await adapter.close()


async def _milliseconds(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1_000


if __name__ == "__main__":
    main()
