"""What retention does to claims: 100,000 old jobs go while a node claims.

    python -m benchmarks.pruning

Claims of four jobs, one after the other, alone and beside the retention loop of the same process.
"""

import asyncio
import time
from functools import partial

from app.db.ids import new_id
from app.db.postgres.adapter import PostgresJobsDB
from app.domain.jobs import JobStatus, NodeInfo
from app.domain.retention import Retention
from app.orchestrator.pruning import Pruner
from app.telemetry import Telemetry
from benchmarks.harness.figures import percentile, show, show_machine
from benchmarks.harness.running import Database, database

OLD = 100_000
WAITING = 200_000
CLAIMED = 4
ALONE_SECONDS = 20.0
PAUSE_SECONDS = 0.005
FILL = """
with old as (
    insert into haulage.jobs
        (id, pipeline, status, attempt, claim_no, started_at, finished_at, node_id)
    select
        gen_random_uuid(), 'p', 'completed', 1, 1, now() - interval '40 days',
        now() - interval '40 days', gen_random_uuid()
    from generate_series(1, $1::int)
    returning id
),
payload as (
    insert into haulage.job_payloads (job_id, payload)
    select id, '{"text": "some words"}' from old
),
result as (
    insert into haulage.job_results (job_id, claim_no, result)
    select id, 1, '{"words": 2}' from old
),
attempt as (
    insert into haulage.job_attempts (job_id, claim_no, attempt, node_id, ended_at, outcome)
    select id, 1, 1, gen_random_uuid(), now(), 'completed' from old
),
event as (
    insert into haulage.job_events (job_id, claim_no, attempt, kind, stage)
    select id, 1, 1, 'status', 'completed' from old, generate_series(1, 4)
)
insert into haulage.job_logs (job_id, claim_no, attempt, at, level, source, line)
select id, 1, 1, now(), 20, 'stdout', 'a line' from old, generate_series(1, 5)
"""
WAIT = """
insert into haulage.jobs (id, pipeline)
select gen_random_uuid(), 'p' from generate_series(1, $1::int)
"""


def main() -> None:
    """Print the claims of both and the ratio of their 95th percentiles."""
    with database() as db:
        db.run(WAIT, WAITING)
        db.run(FILL, OLD)
        db.run("vacuum analyze")
        alone, beside, seconds = asyncio.run(_measure(db))
        left = db.run("select count(*) from haulage.jobs where status = 'completed'")[0][0]
        show("claims alone", alone)
        show("claims while old jobs go", beside)
        show_machine()
    print(f"{OLD - left:,} jobs went in {seconds:.0f} s")
    before, meanwhile = percentile(alone, 0.95), percentile(beside, 0.95)
    print(f"p95 of a claim: {before:.1f} ms alone, {meanwhile:.1f} ms beside")


async def _measure(db: Database) -> tuple[list[float], list[float], float]:
    adapter = PostgresJobsDB(db.url, max_connections=1, notify=False)
    node = NodeInfo(new_id(), "bench", 1, 1_000, 3_600.0, "0")
    await adapter.register_node(node)
    retention = Retention(jobs={JobStatus.COMPLETED: 30 * 86_400.0})
    factory = partial(PostgresJobsDB, db.url, max_connections=1, notify=False)
    pruner = Pruner(factory, retention, Telemetry())
    try:
        end = time.monotonic() + ALONE_SECONDS
        alone = [
            await _claim(adapter, node.id) for _ in iter(lambda: time.monotonic() < end, False)
        ]
        began = time.monotonic()
        pruning = asyncio.create_task(pruner._prune_once())  # noqa: SLF001  one pass, as its loop makes
        beside: list[float] = []
        while not pruning.done():
            beside.append(await _claim(adapter, node.id))
        await pruning
        return alone, beside, time.monotonic() - began
    finally:
        await pruner.close()
        await adapter.close()


async def _claim(adapter: PostgresJobsDB, node_id: str) -> float:
    await asyncio.sleep(PAUSE_SECONDS)
    began = time.perf_counter()
    await adapter.claim_pending_jobs(node_id, CLAIMED)
    return (time.perf_counter() - began) * 1_000


if __name__ == "__main__":
    main()
