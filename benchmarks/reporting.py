"""How long every view takes over a million jobs, and what reports cost those who claim.

    python -m benchmarks.reporting

A month of work: 1,000,000 jobs, an attempt for each claim, three events for each job. The present
aims at 100 ms, also with 200,000 due jobs more, seven days at 500 ms. Claims beside reports aim at
1.3 times their 95th percentile, with as many sessions that report without a pause as there are
cores to spare: one fewer than the machine has. All three reports loop whatever their number.
"""

import asyncio
import itertools
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from multiprocessing.synchronize import Semaphore
from typing import Final

import asyncpg

from app.db.ids import new_id
from app.db.postgres.adapter import PostgresJobsDB
from app.domain.jobs import NodeInfo
from benchmarks.harness.figures import milliseconds, percentile, show_machine
from benchmarks.harness.history import month_of_work
from benchmarks.harness.running import Database, database

JOBS: Final = 1_000_000
RUNS: Final = 10
PRESENT_MS: Final = 100.0
WEEK_MS: Final = 500.0
CLAIM_RATIO: Final = 1.3
DUE: Final = 200_000
_WEEK: Final = "now() - interval '7 days'"

# By the view's name; the condition is what a dashboard asks for.
PRESENT: Final = {
    "queue_now": "true",
    "oldest_pending": "true",
    "running_now": "true",
    "retries": "true",
    "stuck_candidates": "true",
    "nodes": "true",
    "scaling": "true",
    "jobs": "id = (select id from haulage.jobs where status = 'failed' limit 1)",
    "attempts": "job_id = (select id from haulage.jobs where status = 'failed' limit 1)",
    "milestones": "job_id = (select id from haulage.jobs where status = 'failed' limit 1)",
}
WEEK: Final = {
    "hourly_throughput": f"hour >= {_WEEK}",
    "daily_throughput": f"day >= {_WEEK}",
    "pipeline_latency_24h": "true",
    "pipeline_latency_7d": "true",
    "failure_rates": "true",
    "failures_grouped": "true",
    "submitter_use": "true",
}
# Over everything that is kept, without an aim.
WHOLE: Final = {
    "daily_throughput": "select * from reporting.daily_throughput",
    "attempts of a day by cause": "select cause, count(*) from reporting.attempts"
    " where started_at >= now() - interval '1 day' group by cause",
    "milestones of a day by stage": "select stage, avg(stage_seconds) from reporting.milestones"
    " where reached_at >= now() - interval '1 day' group by stage",
    "llm_usage by model": "select model, sum(cost) from reporting.llm_usage group by model",
    "llm_usage of a day": "select model, sum(cost) from reporting.llm_usage"
    " where finished_at >= now() - interval '1 day' group by model",
    "job_tags by tag": "select tag, count(*) from reporting.job_tags group by tag",
    "jobs by pipeline": "select pipeline, avg(run_seconds) from reporting.jobs group by pipeline",
}
# Views of what waits; of one that has a row for each job the server's part is measured.
WAITING: Final = {
    "queue_now": "select * from reporting.queue_now",
    "oldest_pending": "select * from reporting.oldest_pending",
    "retries": "select * from reporting.retries",
    "stuck_candidates": "select count(*), max(since_seconds) from reporting.stuck_candidates",
    "stuck_candidates, 50 of them": "select * from reporting.stuck_candidates"
    " order by since_seconds desc limit 50",
    "scaling": "select * from reporting.scaling",
}
# Due for one to three hours, a hundred at a time, one of them for its second attempt. Ids as ours.
FILL_DUE: Final = """
insert into haulage.jobs
    (id, pipeline, queue, priority, run_at, created_at, claim_no, attempt, max_attempts)
select
    (lpad(to_hex((extract(epoch from due_at) * 1000)::bigint), 12, '0')
        || '7000' || '9' || lpad(to_hex(n), 15, '0'))::uuid,
    'waits-' || n % 10, case when n % 4 = 0 then 'bulk' else 'default' end,
    n % 3, due_at, due_at, (n % 100 = 0)::int, (n % 100 = 0)::int, 2
from generate_series(1, {due}) n
cross join lateral (
    select now() - interval '3 hours' + interval '2 hours' * (n / 100 * 100) / {due} as due_at
) moment
"""
FILL_DUE_ATTEMPTS: Final = """
insert into haulage.job_attempts
    (job_id, claim_no, attempt, node_id, started_at, ended_at, outcome, cause)
select id, 1, 1, lpad('1', 32, '0')::uuid, run_at, run_at, 'failed', 'exception'
from haulage.jobs
where status = 'pending' and claim_no = 1 and pipeline like 'waits-%'
"""
LOOPED: Final = ("hourly_throughput", "pipeline_latency_7d", "failures_grouped")
ROUNDS: Final = 6
CLAIMS: Final = 150
WARM_UP: Final = 10
# A node claims when it is woken, not in a circle.
PAUSE_SECONDS: Final = 0.01
_Work = Callable[[], AbstractContextManager[Callable[[], object]]]
GIVE_BACK: Final = """
update haulage.jobs set status = 'pending', node_id = null where status = 'running'
"""


def main() -> None:
    """Print the median of each view, and what a claim takes without and beside reports."""
    with database() as db:
        _fill(db)
        show_machine()
        for title, aim, queries in (
            ("the present", PRESENT_MS, _all_of(PRESENT)),
            ("of seven days at most", WEEK_MS, _all_of(WEEK)),
            ("of everything", None, WHOLE),
        ):
            print(f"-- {title}" + (f", aim {aim:.0f} ms" if aim else ""))
            for name, query in queries.items():
                call = partial(db.run, query)
                _show(name, [milliseconds(call) for _ in range(RUNS)], aim)
        show_machine()
        _compare_claims(db)
        show_machine()
        _fill_due(db)
        print(f"-- the present with {DUE:,} due jobs more, aim {PRESENT_MS:.0f} ms")
        for name, query in WAITING.items():
            call = partial(db.run, query)
            _show(name, [milliseconds(call) for _ in range(RUNS)], PRESENT_MS)
        show_machine()


def _fill(db: Database) -> None:
    began = time.perf_counter()
    # Nothing here breaks a foreign key, and to look at each row's takes longer than to write it.
    db.run("set session_replication_role = replica")
    for statement in month_of_work(JOBS):
        db.run(statement)
    db.run("reset session_replication_role")
    for table in ("jobs", "job_attempts", "job_events"):
        [(rows, size)] = db.run(
            f"select count(*), pg_size_pretty(pg_total_relation_size('haulage.{table}'))"  # noqa: S608
            f" from haulage.{table}"
        )
        print(f"{table}: {rows:,} rows, {size}")
    print(f"filled in {time.perf_counter() - began:.0f} s")


def _fill_due(db: Database) -> None:
    db.run(FILL_DUE.format(due=DUE))
    db.run(FILL_DUE_ATTEMPTS)
    db.run("vacuum analyze haulage.jobs, haulage.job_attempts")


def _all_of(conditions: dict[str, str]) -> dict[str, str]:
    return {
        name: f"select * from reporting.{name} where {condition}"  # noqa: S608
        for name, condition in conditions.items()
    }


def _show(name: str, values: list[float], aim: float | None) -> None:
    median = statistics.median(values)
    verdict = "" if aim is None else "met" if median <= aim else "MISSED"
    print(f"{name:<30} median {median:8.1f} ms   largest {max(values):8.1f} ms   {verdict}")


def _compare_claims(db: Database) -> None:
    """Rounds in turns, so that whatever else the machine does strikes all alike."""
    spare = (os.cpu_count() or 1) - 1
    beside = {_of_reports(count): count for count in sorted({max(1, min(spare, 3)), 3})}
    company: dict[str, list[_Work]] = {
        "alone": [],
        # What it costs that the CPUs are busy, whoever keeps them so.
        "beside three that count": [_counting] * 3,
        **{title: _reporting(db.url, count) for title, count in beside.items()},
    }
    values: dict[str, list[float]] = {title: [] for title in company}
    for _ in range(ROUNDS):
        for title, work in company.items():
            with _busy(work):
                values[title] += _round(db)
    print(f"-- claims of one job, {ROUNDS} rounds of {CLAIMS} each, in turns")
    p95 = {title: percentile(taken, 0.95) for title, taken in values.items()}
    for title, taken in values.items():
        ratio = p95[title] / p95["alone"]
        print(
            f"{title:<30} p50 {statistics.median(taken):8.2f} ms   p95 {p95[title]:8.2f} ms   "
            f"{ratio:.2f} times   {_verdict(beside.get(title), spare, ratio)}"
        )


def _of_reports(count: int) -> str:
    return f"beside {count} session{'s' * (count > 1)} of reports"


def _verdict(sessions: int | None, spare: int, ratio: float) -> str:
    """What a ratio means beside so many sessions; None are no reports."""
    if sessions is None:
        return ""
    if sessions > spare:
        return "more sessions than cores to spare"
    return f"aim {CLAIM_RATIO} times {'met' if ratio <= CLAIM_RATIO else 'MISSED'}"


def _reporting(url: str, sessions: int) -> list[_Work]:
    """All reports, shared out among so many sessions; each goes round its own without a pause."""
    looped = [_all_of(WEEK)[name] for name in LOOPED]
    return [partial(_asking, url, looped[first::sessions]) for first in range(sessions)]


def _round(db: Database) -> list[float]:
    db.run(GIVE_BACK)
    db.run("vacuum haulage.jobs")
    return asyncio.run(_claim(db.url))


async def _claim(url: str) -> list[float]:
    adapter = PostgresJobsDB(url, max_connections=1, notify=False)
    node = NodeInfo(new_id(), "bench", 1, 1_000, 600.0, "0")
    values = []
    try:
        await adapter.register_node(node)
        for _ in range(WARM_UP + CLAIMS):
            began = time.perf_counter()
            claimed = await adapter.claim_pending_jobs(node.id, 1)
            values.append((time.perf_counter() - began) * 1_000)
            assert claimed
            await asyncio.sleep(PAUSE_SECONDS)
    finally:
        await adapter.close()
    return values[WARM_UP:]


@contextmanager
def _busy(work: list[_Work]) -> Iterator[None]:
    """A process for each piece of work, from its first turn on."""
    context = multiprocessing.get_context("spawn")
    begun = context.Semaphore(0)
    processes = [context.Process(target=_over_and_over, args=(piece, begun)) for piece in work]
    try:
        for process in processes:
            process.start()
        for _ in processes:
            assert begun.acquire(timeout=60)
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()


def _over_and_over(turns: _Work, begun: Semaphore) -> None:
    with turns() as turn:
        turn()
        begun.release()
        while True:
            turn()


@contextmanager
def _asking(url: str, queries: list[str]) -> Iterator[Callable[[], object]]:
    """Turns that each run a report, on one connection like those of a role that may read."""
    settings = {"max_parallel_workers_per_gather": "0"}
    in_turn = itertools.cycle(queries)
    with asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(url, server_settings=settings))
        yield lambda: runner.run(connection.fetch(next(in_turn)))


@contextmanager
def _counting() -> Iterator[Callable[[], object]]:
    """Turns that use a CPU and nothing else."""
    yield lambda: sum(range(100_000))


if __name__ == "__main__":
    main()
