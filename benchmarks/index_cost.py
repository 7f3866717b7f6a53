"""What indexes cost those who write: a job's life with and without those of revisions 0005 to 0010.

    python -m benchmarks.index_cost

In turns on one table with a history, so that both meet the same growth.
"""

import asyncio
import statistics

from benchmarks.harness.figures import show_machine
from benchmarks.harness.lifecycle import STEPS, Lifecycle
from benchmarks.harness.running import Database, database

HISTORY = 200_000
TURNS = 6
BATCHES = 100
INSERTED = 100
CLAIMED = 20
# What they replaced stands in for it meanwhile, as it did before.
FORMER = (
    "create index jobs_finished_idx on haulage.jobs (finished_at) where finished_at is not null"
)
FILL = """
insert into haulage.jobs (id, pipeline, status, attempt, claim_no, node_id, finished_at)
select gen_random_uuid(), 'p', 'completed', 1, 1, gen_random_uuid(), now()
from generate_series(1, $1::int)
"""
INDEXES = """
select i.indexrelid::regclass::text as name, pg_get_indexdef(i.indexrelid) as made_by
from pg_index i
where i.indexrelid::regclass::text = any ($1)
"""
LATER = [
    f"haulage.{name}"
    for name in (
        "jobs_ended_idx",
        "jobs_not_completed_idx",
        "jobs_dataset_idx",
        "job_payloads_dataset_idx",
        "jobs_submitter_idx",
        "jobs_queue_idx",
    )
]


def main() -> None:
    """Print microseconds per job of each step, with and without, and their difference."""
    taken: dict[bool, dict[str, list[float]]] = {
        with_them: {step: [] for step in STEPS} for with_them in (True, False)
    }
    with database() as db:
        db.run(FILL, HISTORY)
        made_by = [row["made_by"] for row in db.run(INDEXES, LATER)]
        assert len(made_by) == len(LATER)
        for turn in range(TURNS):
            with_them = turn % 2 == 0
            _change(db, made_by, with_them=with_them)
            for step, values in asyncio.run(_run(db)).items():
                taken[with_them][step] += values
        show_machine()
    for step in STEPS:
        jobs = INSERTED if step == "insert" else CLAIMED
        cost, former = (
            statistics.median(taken[chosen][step]) / jobs * 1_000 for chosen in (True, False)
        )
        print(f"{step:<8} {cost:7.1f} us a job with them, {former:7.1f} without")


def _change(db: Database, made_by: list[str], *, with_them: bool) -> None:
    for name in LATER:
        db.run(f"drop index if exists {name}")
    db.run("drop index if exists haulage.jobs_finished_idx")
    for statement in made_by if with_them else [FORMER]:
        db.run(statement)
    db.run("vacuum analyze")


async def _run(db: Database) -> dict[str, list[float]]:
    async with Lifecycle(db.url, CLAIMED) as life:
        for _ in range(BATCHES * CLAIMED // INSERTED):
            await life.insert(INSERTED)
        for _ in range(BATCHES):
            await life.run_batch()
        return life.milliseconds


if __name__ == "__main__":
    main()
