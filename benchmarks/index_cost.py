"""What indexes cost those who write: a job's life with and without those of revisions 0005 to 0010.

    python -m benchmarks.index_cost

Two databases with the same history take turns with a hundred jobs each, so that whatever else the
machine does meets both.
"""

import asyncio
import statistics
from contextlib import AsyncExitStack

import asyncpg

from benchmarks.harness.figures import show_machine
from benchmarks.harness.lifecycle import STEPS, Lifecycle
from benchmarks.harness.running import database

HISTORY = 200_000
TURNS = 200
INSERTED = 100
CLAIMED = 20
LATER = (
    "jobs_ended_idx",
    "jobs_not_completed_idx",
    "jobs_dataset_idx",
    "job_payloads_dataset_idx",
    "jobs_submitter_idx",
    "jobs_queue_idx",
)
# Without them there was this one, which one of them replaced.
FORMER = """
create index jobs_finished_idx on haulage.jobs (finished_at) where finished_at is not null
"""
FILL = """
insert into haulage.jobs (id, pipeline, status, attempt, claim_no, node_id, finished_at)
select gen_random_uuid(), 'p', 'completed', 1, 1, gen_random_uuid(), now()
from generate_series(1, $1::int)
"""


def main() -> None:
    """Print microseconds per job of each step, with and without."""
    with database() as db:
        lives = asyncio.run(_compare(db.migrated("with_them"), db.migrated("without")))
        show_machine()
    for step in STEPS:
        jobs = INSERTED if step == "insert" else CLAIMED
        cost, former = (statistics.median(life.milliseconds[step]) / jobs * 1_000 for life in lives)
        print(f"{step:<8} {cost:7.1f} us a job with them, {former:7.1f} without")


async def _compare(with_them: str, without: str) -> tuple[Lifecycle, Lifecycle]:
    await _prepare(with_them, keep=True)
    await _prepare(without, keep=False)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(Lifecycle(with_them, CLAIMED))
        second = await stack.enter_async_context(Lifecycle(without, CLAIMED))
        for turn in range(TURNS):
            # Each goes first as often as the other.
            for life in (first, second) if turn % 2 else (second, first):
                await life.insert(INSERTED)
                for _ in range(INSERTED // CLAIMED):
                    await life.run_batch()
        return first, second


async def _prepare(url: str, *, keep: bool) -> None:
    session = await asyncpg.connect(url, command_timeout=120)
    if not keep:
        for name in LATER:
            await session.execute(f"drop index haulage.{name}")
        await session.execute(FORMER)
    await session.execute(FILL.replace("$1::int", str(HISTORY)))
    await session.execute("vacuum analyze")
    await session.close()


if __name__ == "__main__":
    main()
