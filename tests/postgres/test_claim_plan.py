"""The claim walks its index and nothing else, however many rows there are, and never waits."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from contract.steps import new_job, new_node

from app.db.postgres.adapter import PostgresJobsDB
from app.db.postgres.statements import STATEMENTS

CLAIM = STATEMENTS["claim_pending_jobs"].sql
LIMIT = 10

# Ids as ours: they grow with time.
FILL = """
with filled as (
    insert into haulage.jobs (id, pipeline, queue, status, priority, run_at, finished_at, attempt)
    select
        lpad(to_hex($1 + n), 32, '0')::uuid, 'p', $5, $3, n % 3,
        now() + $4::interval - n * interval '1 millisecond',
        case when $3 = 'completed' then now() end, 0
    from generate_series(1, $2::bigint) n
    returning id
)
insert into haulage.job_payloads (job_id, payload) select id, '{}'::jsonb from filled
"""


@asynccontextmanager
async def connected(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def fill(url: str, *parts: tuple[int, str, str], queue: str = "default") -> None:
    """Rows by number, status and distance of their start from now, in that order."""
    async with connected(url) as connection:
        first = await connection.fetchval("select count(*) from haulage.jobs")
        for count, status, start in parts:
            statement = FILL.replace("$4", f"'{start}'").replace("$5", f"'{queue}'")
            await connection.execute(statement, first, count, status)
            first += count


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The plan's nodes, outermost first."""
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


class Claimer:
    """A session that has prepared the claim, as a scheduler's has."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]", node: str) -> None:
        self._connection = connection
        self._execute = f"execute claim ('{UUID(node)}', {LIMIT}, '{{p,q}}', 262144)"

    async def prepare(self) -> None:
        await self._connection.execute(f"prepare claim (uuid, bigint, text[], int) as {CLAIM}")

    async def claim(self) -> None:
        await self._connection.execute(self._execute)

    async def scans_of_jobs(self) -> list[dict[str, Any]]:
        """How the server reads jobs for a claim, with what it really did; it is taken back."""
        transaction = self._connection.transaction()
        await transaction.start()
        explained = await self._connection.fetchval(
            f"explain (analyze, format json) {self._execute}"
        )
        await transaction.rollback()
        plan = list(nodes(json.loads(explained)[0]["Plan"]))
        assert plan[0]["Actual Rows"] == LIMIT
        return [
            n
            for n in plan
            if n.get("Relation Name") == "jobs" and "Scan" in n["Node Type"] and n["Actual Loops"]
        ]


@asynccontextmanager
async def claimer(url: str) -> AsyncIterator[Claimer]:
    db = PostgresJobsDB(url)
    node = await new_node(db)
    await db.close()
    async with connected(url) as connection:
        session = Claimer(connection, node)
        await session.prepare()
        yield session


def assert_only_the_index_was_walked(scans: list[dict[str, Any]]) -> None:
    assert "Seq Scan" not in {scan["Node Type"] for scan in scans}
    [walk] = [scan for scan in scans if scan.get("Index Name") == "jobs_claim_idx"]
    # It stops at the limit: what lies behind is not looked at.
    assert walk["Actual Rows"] == LIMIT
    assert walk.get("Rows Removed by Filter", 0) == 0


@pytest.mark.parametrize(
    "parts",
    [
        [(3_000, "pending", "0")],
        [(100_000, "pending", "0"), (50_000, "pending", "1 day"), (50_000, "completed", "0")],
        [(10, "pending", "0"), (20_000, "pending", "1 day"), (20_000, "completed", "0")],
    ],
    ids=["3,000 due", "200,000 of all kinds", "10 due among 40,000"],
)
async def test_the_claim_walks_its_index_only(
    database_url: str, parts: list[tuple[int, str, str]]
) -> None:
    await fill(database_url, *parts)
    async with claimer(database_url) as session, connected(database_url) as connection:
        await connection.execute("analyze haulage.jobs, haulage.job_payloads")

        assert_only_the_index_was_walked(await session.scans_of_jobs())


async def test_a_plan_made_on_the_empty_table_still_walks_the_index_when_a_burst_comes(
    database_url: str,
) -> None:
    async with claimer(database_url) as session:
        # From the sixth execution on the server may keep a plan for good.
        for _ in range(12):
            await session.claim()
        await fill(database_url, (15_000, "pending", "0"), (5_000, "completed", "0"))

        assert_only_the_index_was_walked(await session.scans_of_jobs())


@pytest.mark.parametrize("is_planned_empty", [False, True], ids=["analysed", "planned empty"])
async def test_the_claim_passes_over_what_waits_in_a_paused_queue(
    database_url: str, *, is_planned_empty: bool
) -> None:
    async with claimer(database_url) as session, connected(database_url) as connection:
        for _ in range(12 if is_planned_empty else 0):
            await session.claim()
        await connection.execute("insert into haulage.queues (name, is_paused) values ('b', true)")
        await fill(database_url, (100_000, "pending", "0"), queue="b")
        # They come after all of those.
        for queue in "ac":
            await fill(database_url, (200, "pending", "0"), queue=queue)
        if not is_planned_empty:
            await connection.execute("analyze haulage.jobs, haulage.job_payloads")

        scans = await session.scans_of_jobs()

    assert {scan["Node Type"] for scan in scans} <= {"Index Scan", "Index Only Scan"}
    looked_at = sum(
        (scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)) * scan["Actual Loops"]
        for scan in scans
    )
    # The first 110 of both queues, of these the first 10.
    assert looked_at < 300


async def test_a_paused_queue_changes_nothing_in_the_order_of_the_others(
    database_url: str,
) -> None:
    db = PostgresJobsDB(database_url)
    node = await new_node(db)
    await db.pause_queue("b")
    jobs = [
        await new_job(db, queue=queue, priority=priority)
        for queue, priority in (("a", 1), ("b", 9), ("c", 2), ("a", 3), ("c", 1), ("b", 0))
    ]
    async with connected(database_url) as holder, holder.transaction():
        await holder.execute("select from haulage.jobs where id = $1 for update", UUID(jobs[3]))

        # What another claimer holds is passed over.
        found = [job.id for job in await db.claim_pending_jobs(node, 2)]
        assert found == [jobs[2], jobs[0]]
    found = [job.id for job in await db.claim_pending_jobs(node, 10)]
    assert found == [jobs[3], jobs[4]]
    await db.pause_queue("a")
    await db.pause_queue("c")
    assert await db.claim_pending_jobs(node, 10) == []
    await db.resume_queue("b")
    assert [job.id for job in await db.claim_pending_jobs(node, 10)] == [jobs[1], jobs[5]]
    await db.close()


async def test_the_claim_takes_the_next_job_at_once_when_another_transaction_holds_the_first(
    database_url: str,
) -> None:
    # Whoever waited for a lock would fail after 300 ms.
    db = PostgresJobsDB(f"{database_url}?lock_timeout=300ms")
    node = await new_node(db)
    head, following = await new_job(db), await new_job(db)
    async with connected(database_url) as holder, holder.transaction():
        await holder.execute("select from haulage.jobs where id = $1 for update", UUID(head))

        job = await db.claim_next_pending_job(node)
        assert job is not None
        assert job.id == following
        assert await db.claim_next_pending_job(node) is None

        # Without its two words the statement waits: what this test would then see.
        assert "skip locked" in CLAIM
        async with connected(f"{database_url}?lock_timeout=300ms") as waiting:
            with pytest.raises(asyncpg.LockNotAvailableError):
                await waiting.fetch(CLAIM.replace("skip locked", ""), UUID(node), 1, None, 1)
    job = await db.claim_next_pending_job(node)
    assert job is not None
    assert job.id == head
    await db.close()


async def test_the_claim_takes_nothing_when_its_transaction_is_undone(database_url: str) -> None:
    db = PostgresJobsDB(database_url)
    node = await new_node(db)
    job_id = await new_job(db)
    async with connected(database_url) as connection:
        transaction = connection.transaction()
        await transaction.start()
        assert len(await connection.fetch(CLAIM, UUID(node), 1, None, 1)) == 1
        await transaction.rollback()

    assert await db.list_attempts(job_id) == []
    job = await db.claim_next_pending_job(node)
    assert job is not None
    assert job.claim_no == 1
    await db.close()
