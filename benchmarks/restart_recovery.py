"""How soon jobs flow as before after PostgreSQL was stopped at once under load and started again.

    python benchmarks/restart_recovery.py

More jobs wait than are run, so the rate is what the node can do. It counts as back where a window
of some seconds begins in which at least 95 % as many jobs ended as on average before the stop. The
node is never restarted; every job has to end well in its only attempt.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import asyncpg

from benchmarks.harness.figures import show_machine
from benchmarks.harness.running import Database, database, service

SLOTS = 4
JOBS = 6_000
WARM_SECONDS = 6.0
BEFORE_SECONDS = 12.0
AFTER_SECONDS = 20.0
WINDOW_SECONDS = 3.0
STEP_SECONDS = 0.1
SHARE = 0.95
INSERT = """
with job as (
    insert into haulage.jobs (id, pipeline)
    select gen_random_uuid(), 'demo-echo' from generate_series(1, $1::int)
    returning id
)
insert into haulage.job_payloads (job_id, payload) select id, '{"n": 1}' from job
"""
ENDS = """
select extract(epoch from ended_at)::float8 from haulage.job_attempts
where outcome = 'completed' order by 1
"""
PAID_FOR = "select count(*) from haulage.jobs where attempt > 1 or node_losses > 0"
LOST = "select count(*) from haulage.job_attempts where outcome not in ('completed', 'released')"
NODES = "select count(*) from haulage.nodes"


def main() -> None:
    """Print the rates, the outage and the time until the rate was back."""
    with database() as db:
        db.run(INSERT, JOBS)
        with service(db, "worker", max_concurrent_jobs=SLOTS):
            time.sleep(WARM_SECONDS + BEFORE_SECONDS)
            stopped = time.time()
            db.restart_at_once()
            ready = time.time()
            time.sleep(AFTER_SECONDS)
            ends, paid_for, lost, nodes = asyncio.run(_look(db))
        _report(ends, stopped, ready)
        print(f"jobs that paid with an attempt or a node loss: {paid_for}, attempts lost: {lost}")
        assert nodes == 1
        show_machine()


def _report(ends: Sequence[float], stopped: float, ready: float) -> None:
    before = _count(ends, stopped - BEFORE_SECONDS, stopped) / BEFORE_SECONDS
    wanted = SHARE * before * WINDOW_SECONDS
    steps = int((AFTER_SECONDS - WINDOW_SECONDS) / STEP_SECONDS)
    starts = (ready + step * STEP_SECONDS for step in range(steps))
    back = next((at for at in starts if _count(ends, at, at + WINDOW_SECONDS) >= wanted), None)
    if back is None:
        after = _count(ends, ready, ready + AFTER_SECONDS) / AFTER_SECONDS
        told = f"not back in {AFTER_SECONDS:g} s ({after:.1f} jobs/s)"
    else:
        seconds = ready + AFTER_SECONDS - back
        after = _count(ends, back, ready + AFTER_SECONDS) / seconds
        told = f"back after {back - ready:.1f} s, from then on {after:.1f} jobs/s"
    print(
        f"{SLOTS} slots: {before:.1f} jobs/s before; PostgreSQL away for {ready - stopped:.1f} s; "
        f"{told} ({after / before:.0%})"
    )


def _count(ends: Sequence[float], begin: float, end: float) -> int:
    return sum(begin <= at < end for at in ends)


async def _look(db: Database) -> tuple[list[float], Any, Any, Any]:
    # The benchmark's own session ended with the server.
    connection = await asyncpg.connect(db.url)
    try:
        ends = [row[0] for row in await connection.fetch(ENDS)]
        numbers = [await connection.fetchval(query) for query in (PAID_FOR, LOST, NODES)]
    finally:
        await connection.close()
    return ends, numbers[0], numbers[1], numbers[2]


if __name__ == "__main__":
    main()
