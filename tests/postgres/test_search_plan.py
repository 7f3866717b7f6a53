"""Searches over 200,000 jobs look at a bounded number of rows, in the order of an index."""

import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from postgres.test_claim_plan import connected, nodes

from app.db.ids import new_id
from app.db.postgres import reads
from app.db.postgres.adapter import PostgresJobsDB
from app.db.postgres.statements import STATEMENTS
from app.domain.jobs import JobStatus
from app.domain.managing import MAX_LOOKED_AT, JobFilter

JOBS = 200_000
PAGE = 50
NODE = "00000000-0000-7000-8000-00000000000a"
BATCH = "00000000-0000-7000-8000-00000000000b"
# Ids as ours, one each second up to now; one in a thousand failed, the newest wait or run.
FILL = f"""
with filled as (
    insert into haulage.jobs (
        id, pipeline, queue, status, created_at, finished_at, tags, submitted_by, claim_no, node_id,
        batch_id
    )
    select
        (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0')
            || '7000' || '8' || lpad(to_hex(n), 15, '0'))::uuid,
        case when n % 50000 = 7 then 'rare' else 'p' end, 'default', status, at,
        case when status in ('completed', 'failed') then at end,
        case when n % 2 = 0 then '{{even}}'::text[] else '{{}}' end, '', 1, '{NODE}'::uuid,
        case when n between 1000 and 1999 then '{BATCH}'::uuid end
    from (
        select
            n, now() - ({JOBS} - n) * interval '1 second' as at,
            case
                when n > {JOBS} - 10 then 'running'
                when n > {JOBS} - 2000 then 'pending'
                when n % 1000 = 3 then 'failed'
                else 'completed'
            end as status
        from generate_series(1, {JOBS}) n
    ) rows
    returning id, status
)
insert into haulage.job_attempts (
    job_id, claim_no, attempt, node_id, ended_at, outcome, error_class, error_message
)
select
    id, 1, 1, '{NODE}',
    case when status in ('completed', 'failed') then now() end,
    case when status in ('completed', 'failed') then status end,
    case when status = 'failed' then 'ValueError' end,
    case when status = 'failed' then 'no such column' end
from filled
"""  # noqa: S608  constants
NOW = datetime.now(UTC)
FILTERS: dict[str, JobFilter] = {
    "nothing": JobFilter(),
    **{f"status {status}": JobFilter(statuses=(status,)) for status in JobStatus},
    "two statuses": JobFilter(statuses=(JobStatus.FAILED, JobStatus.COMPLETED)),
    "a common pipeline": JobFilter(pipeline="p"),
    "a rare pipeline": JobFilter(pipeline="rare"),
    "an unknown queue": JobFilter(queue="none"),
    "a common tag": JobFilter(tags=("even",)),
    "an unknown tag": JobFilter(tags=("none",)),
    "a node": JobFilter(node=NODE),
    "an unknown node": JobFilter(node=new_id()),
    "what runs on a node": JobFilter(node=NODE, statuses=(JobStatus.RUNNING,)),
    "a batch": JobFilter(batch=BATCH),
    "an unknown batch": JobFilter(batch=new_id()),
    "the last hour": JobFilter(created_after=NOW - timedelta(hours=1)),
    "long ago": JobFilter(created_before=NOW - timedelta(hours=40)),
    "a day long ago": JobFilter(
        created_after=NOW - timedelta(hours=41), created_before=NOW - timedelta(hours=40)
    ),
    "a common error": JobFilter(error="SUCH COLUMN"),
    "an unknown error": JobFilter(error="nobody"),
    "somebody unknown": JobFilter(submitted_by="nobody"),
    "ids": JobFilter(ids=tuple(new_id() for _ in range(1_000))),
    "much together": JobFilter(
        statuses=(JobStatus.FAILED,), pipeline="p", tags=("even",), error="x"
    ),
}
# What is common or indexed costs a page and no more. The walk to a time begins an hour beside it,
# for clocks that differ.
CHEAP = (
    "nothing",
    "status completed",
    "status failed",
    "status pending",
    "status running",
    "a common pipeline",
    "a common tag",
    "a node",
    "what runs on a node",
    "the last hour",
    "long ago",
    "ids",
    "a batch",
)


def looked_at(plan: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """How many rows each scan of a table came by, filtered ones included."""
    for node in nodes(plan):
        if "Relation Name" in node and node["Actual Loops"]:
            rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            yield node["Node Type"], rows * node["Actual Loops"]


async def explained(
    connection: "asyncpg.Connection[asyncpg.Record]", composed: reads.Composed
) -> dict[str, Any]:
    sql, arguments = composed
    found = await connection.fetchval(f"explain (analyze, format json) {sql}", *arguments)
    plan: dict[str, Any] = json.loads(found)[0]["Plan"]
    return plan


@pytest.mark.slow
async def test_searches_over_many_jobs_are_bounded(
    database_url: str, subtests: pytest.Subtests
) -> None:
    async with connected(database_url) as connection:
        await connection.execute(FILL)
        await connection.execute("analyze haulage.jobs, haulage.job_attempts")
        middle = await connection.fetchval(
            "select id from haulage.jobs order by id offset 150000 limit 1"
        )
        for name, wanted in FILTERS.items():
            for what, composed in (
                ("page", reads.page(wanted, PAGE, None)),
                ("later page", reads.page(wanted, PAGE, middle)),
                ("count", reads.count(wanted, None)),
            ):
                with subtests.test(f"{what} of {name}"):
                    scans = list(looked_at(await explained(connection, composed)))
                    assert "Seq Scan" not in {kind for kind, _ in scans}
                    # The walk of the page, that to its edge, and an attempt for each.
                    assert max(rows for _, rows in scans) <= MAX_LOOKED_AT + 1
                    assert len(scans) <= 4
        for name in CHEAP:
            with subtests.test(f"a page of {name}, and no more"):
                plan = await explained(connection, reads.page(FILTERS[name], PAGE, None))
                assert sum(rows for _, rows in looked_at(plan)) < 9_000
        with subtests.test("queues"):
            plan = await explained(connection, (STATEMENTS["list_queues"].sql, ["", 200, 100]))
            of_jobs = [s for s in nodes(plan) if s.get("Relation Name") == "jobs"]
            assert "Seq Scan" not in {scan["Node Type"] for scan in of_jobs}
            # Ten that run, two looks for names, and one more than the bound of those that wait.
            assert sum(scan["Actual Rows"] for scan in of_jobs) <= 10 + 2 + 101

        found = [row["id"] async for row in walked(connection, JobFilter(pipeline="rare"))]
        rare = await connection.fetch(
            "select id from haulage.jobs where pipeline = 'rare' order by id desc"
        )
        assert found == [row["id"] for row in rare]
        assert len(found) == JOBS // 50_000


async def test_a_search_is_planned_for_its_own_filter_each_time(database_url: str) -> None:
    db = PostgresJobsDB(database_url, max_connections=1)
    for n in range(12):
        await db.list_jobs(JobFilter(pipeline=f"p{n}"), limit=PAGE)
        await db.count_jobs(JobFilter(pipeline=f"p{n}"))
    async with db._borrowed() as connection:
        plans = await connection.fetch(
            "select custom_plans, generic_plans from pg_prepared_statements"
            " where statement like '%looked%' and statement not like '%pg_prepared%'"
        )
    await db.close()
    assert [tuple(plan) for plan in plans] == [(12, 0)] * 2


async def walked(
    connection: "asyncpg.Connection[asyncpg.Record]", wanted: JobFilter
) -> AsyncIterator[asyncpg.Record]:
    """What all pages hold; there are as many as the bound makes of so many jobs."""
    before: UUID | None = None
    for _ in range(JOBS // MAX_LOOKED_AT + 1):
        sql, arguments = reads.page(wanted, PAGE, before)
        rows = await connection.fetch(sql, *arguments)
        for row in rows:
            if row["id"] is not None:
                yield row
        before = rows[0]["edge"]
        if before is None:
            return
    raise AssertionError("the walk does not end")


FILL_SUBMITTED = """
insert into haulage.jobs (id, pipeline, submitted_by, status, finished_at)
select
    gen_random_uuid(), 'p', 'a', case when n > 200 then 'pending' else 'failed' end,
    case when n <= 200 then now() end
from generate_series(1, 10200) n;
insert into haulage.job_payloads select id, '{}' from haulage.jobs
"""


async def test_what_a_key_has_waiting_is_counted_once_for_all_that_begin_again(
    database_url: str,
) -> None:
    async with connected(database_url) as connection:
        await connection.execute(FILL_SUBMITTED)
        await connection.execute("vacuum analyze haulage.jobs, haulage.job_payloads")
        failed = [
            row["id"]
            for row in await connection.fetch("select id from haulage.jobs where status = 'failed'")
        ]
        arguments = [failed, ["failed"], 10_000, 10**9]
        plan = await explained(connection, (STATEMENTS["retry_jobs"].sql, arguments))

    # Once for the count, and what begins again: for each of them it would be millions.
    assert sum(rows for _, rows in looked_at(plan)) < 100_000
