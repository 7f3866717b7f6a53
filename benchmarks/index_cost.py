"""What indexes cost those who write: a job's life with and without those of revisions 0005 to 0016.

    python -m benchmarks.index_cost              all of them
    python -m benchmarks.index_cost waiting      the columns that 0016 put beside the key of one

Two databases with the same history take turns with a hundred jobs each, so that whatever else the
machine does meets both.
"""

import argparse
import asyncio
import statistics
from contextlib import AsyncExitStack
from dataclasses import dataclass

import asyncpg

from benchmarks.harness.figures import percentile, show_machine
from benchmarks.harness.lifecycle import STEPS, Lifecycle
from benchmarks.harness.running import database

HISTORY = 200_000
TURNS = 200
INSERTED = 100
CLAIMED = 20


@dataclass(frozen=True, slots=True)
class Change:
    """Indexes of the newest revision, and what was there without them."""

    later: tuple[str, ...]
    former: str


CHANGES = {
    "all": Change(
        (
            "jobs_ended_idx",
            "jobs_not_completed_idx",
            "jobs_dataset_idx",
            "job_payloads_dataset_idx",
            "jobs_submitter_idx",
            "jobs_waiting_idx",
        ),
        "create index jobs_finished_idx on haulage.jobs (finished_at)"
        " where finished_at is not null",
    ),
    "waiting": Change(
        ("jobs_waiting_idx",),
        "create index jobs_queue_idx on haulage.jobs (queue, priority desc, run_at, id)"
        " where status = 'pending'",
    ),
}
FILL = """
insert into haulage.jobs (id, pipeline, status, attempt, claim_no, node_id, finished_at)
select gen_random_uuid(), 'p', 'completed', 1, 1, gen_random_uuid(), now()
from generate_series(1, $1::int)
"""


def main() -> None:
    """Print microseconds per job of each step and bytes of the write-ahead log, for both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("change", choices=CHANGES, nargs="?", default="all")
    change = CHANGES[parser.parse_args().change]
    with database() as db:
        urls = db.migrated("with_them"), db.migrated("without")
        lives, logs = asyncio.run(_compare(*urls, change))
        show_machine()
    for step in STEPS:
        jobs = INSERTED if step == "insert" else CLAIMED
        for title, pick in (("median", statistics.median), ("best tenth", _best_tenth)):
            cost, former = (pick(life.milliseconds[step]) / jobs * 1_000 for life in lives)
            print(f"{step:<8} {title:<10} {cost:7.1f} us a job with them, {former:7.1f} without")
    with_them, without = (sum(log) / len(log) / INSERTED for log in logs)
    print(f"log written: {with_them:,.0f} bytes a job with them, {without:,.0f} without")


def _best_tenth(values: list[float]) -> float:
    # What a step takes while nobody else wants the CPU.
    return percentile(values, 0.1)


async def _compare(
    with_them: str, without: str, change: Change
) -> tuple[tuple[Lifecycle, Lifecycle], tuple[list[float], list[float]]]:
    logs: tuple[list[float], list[float]] = ([], [])
    await _prepare(with_them)
    await _prepare(without, change)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(Lifecycle(with_them, CLAIMED))
        second = await stack.enter_async_context(Lifecycle(without, CLAIMED))
        contenders = list(zip((first, second), logs, strict=True))
        for _ in range(TURNS):
            # Each goes first as often as the other.
            contenders.reverse()
            for life, log in contenders:
                before = await life.log_position()
                await life.insert(INSERTED)
                for _ in range(INSERTED // CLAIMED):
                    await life.run_batch()
                log.append(await life.log_position() - before)
        return (first, second), logs


async def _prepare(url: str, undone: Change | None = None) -> None:
    session = await asyncpg.connect(url, command_timeout=120)
    if undone is not None:
        for name in undone.later:
            await session.execute(f"drop index haulage.{name}")
        await session.execute(undone.former)
    await session.execute(FILL.replace("$1::int", str(HISTORY)))
    # Of this table alone: one that is known to be empty is read whole, by plans that are kept while
    # it grows, until autovacuum comes to one database sooner than to the other.
    await session.execute("vacuum analyze haulage.jobs")
    await session.close()


if __name__ == "__main__":
    main()
