"""Views of the present look at jobs that wait or run; those of a time at the jobs of that time."""

import json
from typing import Any

import pytest
from postgres.test_claim_plan import nodes
from reporting.rows import Session

from benchmarks.harness.history import month_of_work

JOBS = 100_000
UNFINISHED = 1_040
# What shows the present, with the tables that it may read.
PRESENT: dict[str, set[str]] = {
    "queue_now": {"jobs", "queues"},
    "oldest_pending": {"jobs"},
    "stuck_candidates": {"jobs", "queues", "nodes"},
    "nodes": {"jobs", "nodes"},
    "scaling": {"jobs", "queues", "nodes"},
    "running_now": {"jobs", "nodes", "job_attempts"},
    "retries": {"jobs", "job_attempts"},
}
OF_A_DAY: dict[str, str] = {
    "hours": "select * from reporting.hourly_throughput where hour >= now() - interval '1 day'",
    "a day": "select * from reporting.daily_throughput where day >= now() - interval '1 day'",
    "latency": "select * from reporting.pipeline_latency_24h",
    "completed jobs": "select pipeline, avg(run_seconds) from reporting.jobs"
    " where status = 'completed' and finished_at > now() - interval '1 day' group by pipeline",
}
# Beside the history: many that wait, due for hours, a few of them for a second attempt.
WAITING = 20_000
AGAIN = 200
PIPELINES = 3
FILL_WAITING = f"""
insert into haulage.jobs (id, pipeline, queue, priority, run_at, claim_no, attempt)
select
    gen_random_uuid(), 'waits-' || n % {PIPELINES}, 'long', n % 3,
    date_trunc('hour', now()) - interval '3 hours' - n * interval '{{step}}',
    (n % {WAITING // AGAIN} = 0)::int, (n % {WAITING // AGAIN} = 0)::int
from generate_series(1, {WAITING}) n
"""  # noqa: S608  constants
# What each view of waiting jobs may show of them, and so read of the table itself.
SHOWN: dict[str, int] = {
    "select * from reporting.oldest_pending": PIPELINES,
    "select * from reporting.retries": AGAIN,
    "select * from reporting.stuck_candidates": 0,
    "select * from reporting.queue_now": 0,
    "select * from reporting.scaling": 0,
}
COUNTED = """
select count(*) filter (where finished_at is null) as unfinished,
    count(*) filter (where finished_at > now() - interval '25 hours') as of_a_day
from haulage.jobs
"""


async def scans(session: Session, query: str) -> list[dict[str, Any]]:
    """How tables were read, with what was really done."""
    explained = await session.fetchval(f"explain (analyze, format json) {query}")
    plan = nodes(json.loads(explained)[0]["Plan"])
    return [n for n in plan if n.get("Relation Name") and n["Actual Loops"]]


def looked_at(found: list[dict[str, Any]], table: str) -> float:
    """Rows of a table that scans came by, those included that a filter took away."""
    rows: float = sum(
        (n["Actual Rows"] + n.get("Rows Removed by Filter", 0)) * n["Actual Loops"]
        for n in found
        if n["Relation Name"] == table
    )
    return rows


def ways(found: list[dict[str, Any]], table: str) -> set[str]:
    return {n["Node Type"] for n in found if n["Relation Name"] == table}


async def test_no_view_reads_more_than_it_shows_when_there_is_a_long_history(
    session: Session, subtests: pytest.Subtests
) -> None:
    for statement in month_of_work(JOBS):
        await session.execute(statement)
    counted = await session.fetchrow(COUNTED)
    assert counted is not None
    assert counted["unfinished"] == UNFINISHED
    assert 0 < counted["of_a_day"] < JOBS / 20

    for name, tables in PRESENT.items():
        with subtests.test(name):
            found = await scans(session, f"select * from reporting.{name}")  # noqa: S608
            assert {n["Relation Name"] for n in found} <= tables
            assert "Seq Scan" not in ways(found, "jobs")
            # Some look for the ids first.
            assert looked_at(found, "jobs") <= 2 * UNFINISHED
            assert ways(found, "job_attempts") <= {"Index Scan"}
            assert looked_at(found, "job_attempts") <= UNFINISHED

    job_id = await session.fetchval("select id from haulage.jobs where status = 'failed' limit 1")
    for name, key, rows in (("jobs", "id", 1), ("attempts", "job_id", 2)):
        with subtests.test(f"{name} by id"):
            found = await scans(
                session,
                f"select * from reporting.{name} where {key} = '{job_id}'",  # noqa: S608
            )
            assert "Seq Scan" not in ways(found, "jobs") | ways(found, "job_attempts")
            assert looked_at(found, "job_attempts" if name == "attempts" else "jobs") == rows

    for name, query in OF_A_DAY.items():
        with subtests.test(name):
            found = await scans(session, query)
            assert {n["Relation Name"] for n in found} == {"jobs"}
            assert "Seq Scan" not in ways(found, "jobs")
            # The first hour is a whole one, and the oldest job of each status is asked for.
            assert looked_at(found, "jobs") <= counted["of_a_day"] + 3

    with subtests.test("tables that are joined for a column that nobody asks for"):
        found = await scans(
            session, "select outcome, count(*) from reporting.attempts group by outcome"
        )
        assert {n["Relation Name"] for n in found} == {"job_attempts"}


@pytest.mark.parametrize("step", ["1 millisecond", "0"], ids=["one by one", "at one time"])
async def test_waiting_jobs_are_told_by_their_index_however_many_there_are(
    session: Session, subtests: pytest.Subtests, step: str
) -> None:
    # Rows of a commit that is not written yet are not for all to see, whatever vacuum finds.
    await session.execute("set synchronous_commit = on")
    for statement in month_of_work(JOBS):
        await session.execute(statement)
    await session.execute(FILL_WAITING.format(step=step))
    await session.execute("vacuum analyze haulage.jobs")

    for query, shown in SHOWN.items():
        with subtests.test(query):
            found = await scans(session, query)
            of_rows = [n for n in found if n["Node Type"] != "Index Only Scan"]
            # Those of the history that wait or run may be looked at, too.
            assert looked_at(of_rows, "jobs") <= shown + UNFINISHED
            assert sum(n.get("Heap Fetches", 0) for n in found) == 0
            # Twice at most, in all: once to count, once to look for the first.
            assert looked_at(found, "jobs") <= 2 * (WAITING + UNFINISHED)


async def test_usage_of_jobs_that_ended_lately_is_read_alone(session: Session) -> None:
    for statement in month_of_work(JOBS):
        await session.execute(statement)
    lately = "finished_at > now() - interval '8 hours'"
    jobs = await session.fetchval(f"select count(*) from haulage.jobs where {lately}")  # noqa: S608
    assert 0 < jobs < JOBS / 100

    found = await scans(
        session,
        f"select model, sum(cost) from reporting.llm_usage where {lately} group by model",  # noqa: S608
    )

    assert {n["Relation Name"] for n in found} == {"jobs", "usage"}
    assert "Seq Scan" not in ways(found, "jobs") | ways(found, "usage")
    assert looked_at(found, "jobs") <= jobs
    # Two stages of one job in four.
    assert looked_at(found, "usage") <= jobs
