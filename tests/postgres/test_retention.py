"""Retention beside others in PostgreSQL: one process at a time, by indexes, in nobody's way."""

import asyncio
import json
from uuid import UUID

import asyncpg
import pytest
from contract.steps import CALL, claimed, complete, new_job, new_node
from postgres.test_claim_plan import connected, nodes
from support.waiting import eventually

from app.db.postgres.adapter import PostgresJobsDB
from app.db.postgres.statements import STATEMENTS
from app.domain.jobs import JobStatus

PRUNE = STATEMENTS["prune_jobs"].sql

FILL = """
with filled as (
    insert into haulage.jobs (id, pipeline, status, finished_at)
    select
        lpad(to_hex($2 + n), 32, '0')::uuid, 'p', $1::text,
        now() - interval '40 days' - n * interval '1 second'
    from generate_series(1, $3::bigint) n
    returning id
)
insert into haulage.job_payloads (job_id, payload) select id, '{}'::jsonb from filled
"""


async def test_who_comes_meanwhile_leaves_at_once(database_url: str) -> None:
    first, second = PostgresJobsDB(database_url), PostgresJobsDB(database_url)
    job = await claimed(first)
    assert await complete(first, job)
    later = await claimed(first)
    await first.save_call(later.claim, CALL)
    assert await complete(first, later)
    async with connected(database_url) as holder, holder.transaction():
        # The first one has begun, and waits for something of the job.
        await holder.execute(
            "select from haulage.job_payloads where job_id = $1 for update", UUID(job.id)
        )
        pruning = asyncio.ensure_future(first.prune_jobs(JobStatus.COMPLETED, 0.0, 1))

        async def is_waiting() -> bool:
            waiting: int = await holder.fetchval(
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and wait_event_type = 'Lock'"
            )
            return waiting == 1

        await eventually(is_waiting, "the first one in the middle")
        for prune in (second.prune_calls, second.prune_datasets, second.prune_nodes):
            assert await prune(0.0, 10) == 0
        # Not even what the first one does not hold.
        assert await second.prune_jobs(JobStatus.COMPLETED, 0.0, 10) == 0
        # Claims and submissions go on.
        pending = await new_job(second)
        claim = await second.claim_next_pending_job(await new_node(second))
        assert claim is not None
        assert claim.id == pending

    assert await pruning == 1
    assert await second.prune_jobs(JobStatus.COMPLETED, 0.0, 10) == 1
    assert await second.prune_calls(0.0, 10) == 1
    for db in (first, second):
        await db.close()


async def test_each_batch_walks_only_its_own_status(database_url: str) -> None:
    async with connected(database_url) as connection:
        # Failed jobs that are kept for longer stand before every completed one.
        await connection.execute(FILL, "failed", 10**6, 20_000)
        await connection.execute(FILL, "completed", 0, 3_000)
        await connection.execute("analyze haulage.jobs")
        await connection.execute(f"prepare prune (text, float8, bigint) as {PRUNE}")
        explained = await connection.fetchval(
            "explain (analyze, format json) execute prune ('completed', 2592000, 500)"
        )
        plan = list(nodes(json.loads(explained)[0]["Plan"]))
        [walk] = [node for node in plan if node.get("Index Name") == "jobs_ended_idx"]
        assert walk["Actual Rows"] <= 500
        assert walk.get("Rows Removed by Filter", 0) == 0
        assert not [
            node
            for node in plan
            if node["Node Type"] == "Seq Scan" and node.get("Relation Name") == "jobs"
        ]
        assert await connection.fetchval("select count(*) from haulage.deleted_jobs") == 500
        assert await connection.fetchval("select count(*) from haulage.job_payloads") == 22_500


async def test_payloads_are_not_read_to_find_the_datasets_that_they_name(
    database_url: str,
) -> None:
    db = PostgresJobsDB(database_url)
    for _ in range(20):
        await db.insert_dataset("a", ["t"], [["x"]], sha256="ab" * 32, detected={})
    async with connected(database_url) as connection:
        await connection.execute(FILL, "completed", 0, 20_000)
        for _ in range(2):
            explained = await connection.fetchval(
                f"explain (analyze, format json) {STATEMENTS['prune_datasets'].sql}", 0.0, 10
            )
            plan = list(nodes(json.loads(explained)[0]["Plan"]))
            read = [n for n in plan if n.get("Relation Name") in {"jobs", "job_payloads"}]
            assert "Seq Scan" not in {node["Node Type"] for node in read}
            # With statistics as well as without.
            await connection.execute("analyze")
        assert await connection.fetchval("select count(*) from haulage.datasets") == 0
    await db.close()


async def test_a_dataset_that_a_job_comes_to_name_meanwhile_stays(database_url: str) -> None:
    db = PostgresJobsDB(database_url)
    dataset = await db.insert_dataset("a", ["t"], [["x"]], sha256="ab" * 32, detected={})
    job = await new_job(db)
    async with connected(database_url) as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute(
            "update haulage.jobs set dataset_id = $1 where id = $2", UUID(dataset.id), UUID(job)
        )
        assert await db.prune_datasets(0.0, 10) == 0
        await transaction.commit()

    assert await db.prune_datasets(0.0, 10) == 0
    assert (await db.get_dataset(dataset.id)).row_count == 1
    await db.close()


async def test_a_dataset_whose_job_came_between_look_and_deletion_is_nothing_to_do(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = PostgresJobsDB(database_url)

    async def violated(_name: str, *_arguments: object) -> None:
        raise asyncpg.ForeignKeyViolationError("a job names it")

    # In one statement there is no place to wait in between.
    monkeypatch.setattr(db, "_fetch_row", violated)
    assert await db.prune_datasets(0.0, 10) == 0
    await db.close()


@pytest.mark.parametrize("by", ["hand", "retention"])
async def test_a_deletion_that_loses_a_deadlock_is_made_again(database_url: str, by: str) -> None:
    db = PostgresJobsDB(database_url)
    job = await claimed(db)
    assert await complete(db, job)
    async with connected(database_url) as holder, connected(database_url) as observer:
        await holder.execute("set deadlock_timeout = '1min'")  # the other one finds it
        await holder.execute("begin")
        await holder.execute(
            "select from haulage.job_payloads where job_id = $1 for update", UUID(job.id)
        )
        deleting = asyncio.ensure_future(
            db.delete_job(job.id) if by == "hand" else db.prune_jobs(JobStatus.COMPLETED, 0.0, 1)
        )
        blocked = "select count(*) from pg_stat_activity where $1 = any (pg_blocking_pids(pid))"

        async def is_waiting() -> bool:
            waiting: int = await observer.fetchval(blocked, holder.get_server_pid())
            return waiting == 1

        await eventually(is_waiting, "the deletion in the middle")
        # Returns when the deletion has been broken off.
        await holder.execute("select from haulage.jobs where id = $1 for update", UUID(job.id))
        if by == "retention":
            assert await deleting == 0  # what another holds is passed over
        await holder.execute("commit")
        await deleting
        assert by == "hand" or await db.prune_jobs(JobStatus.COMPLETED, 0.0, 1) == 1
        assert await observer.fetchval("select count(*) from haulage.jobs") == 0
    await db.close()


async def test_a_dataset_that_a_job_names_cannot_be_deleted_by_mistake(database_url: str) -> None:
    db = PostgresJobsDB(database_url)
    dataset = await db.insert_dataset("a", ["t"], [["x"]], sha256="ab" * 32, detected={})
    job = await new_job(db)
    async with connected(database_url) as other:
        await other.execute(
            "update haulage.jobs set dataset_id = $1 where id = $2", UUID(dataset.id), UUID(job)
        )
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            await other.execute("delete from haulage.datasets")
    await db.close()
