"""Datasets on a server that is slow, or whose connections break off."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from uuid import UUID, uuid4

import asyncpg
import pytest
from support.waiting import eventually

from app.db.postgres.adapter import PostgresJobsDB
from app.db.postgres.statements import STATEMENTS
from app.domain.errors import DatabaseUnavailableError, DatasetInUseError
from app.domain.sharing import Dataset

SHA256 = "ab" * 32


@pytest.fixture
async def observer(database_url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[PostgresJobsDB]:
    """An adapter with one connection, as workers have it: a broken one is missed at once."""
    db = PostgresJobsDB(database_url, max_connections=1, command_timeout_seconds=1.0, notify=False)
    yield db
    await db.close()


async def stored(db: PostgresJobsDB, rows: Iterator[list[str]] | None = None) -> Dataset:
    rows = rows or iter([["a"], ["b"]])
    return await db.insert_dataset("a.csv", ["text"], rows, sha256=SHA256, detected={})


async def test_a_dataset_is_given_up_when_the_server_does_not_go_on(
    db: PostgresJobsDB, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    async with observer.transaction():
        await observer.execute("lock table haulage.dataset_rows in exclusive mode")

        with pytest.raises(DatabaseUnavailableError):
            await stored(db)

    assert await observer.fetchval("select count(*) from haulage.datasets") == 0
    assert (await stored(db)).row_count == 2


async def test_nothing_is_stored_when_the_connection_breaks_off_half_way(
    db: PostgresJobsDB, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    half_way = asyncio.Event()

    def rows() -> Iterator[list[str]]:
        for number in range(100_000):
            if number == 5_000:
                half_way.set()
            yield [str(number)]

    writing = asyncio.ensure_future(stored(db, rows()))
    await half_way.wait()
    await observer.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )

    with pytest.raises(DatabaseUnavailableError):
        await writing
    assert await observer.fetchval("select count(*) from haulage.dataset_rows") == 0
    assert (await stored(db)).row_count == 2


async def test_the_datasets_of_a_file_are_found_by_an_index(
    observer: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    await observer.execute(
        "insert into haulage.datasets (id, name, sha256, columns, row_count)"
        " select gen_random_uuid(), 'a', decode(md5(n::text), 'hex'), '{}', 0"
        " from generate_series(1, 5000) n"
    )
    await observer.execute("analyze haulage.datasets")

    listing = STATEMENTS["list_datasets_of_file"].sql
    plan = await observer.fetch(f"explain {listing}", b"\x01", 100)
    text = "\n".join(line for (line,) in plan)
    assert "datasets_sha256_idx" in text
    assert "Sort" not in text


async def test_the_jobs_of_a_dataset_are_found_by_an_index(
    observer: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    await observer.execute(
        "insert into haulage.jobs (id, pipeline)"
        " select gen_random_uuid(), 'demo-echo' from generate_series(1, 5000) n"
    )
    await observer.execute("analyze haulage.jobs")

    removing = STATEMENTS["delete_dataset"].sql
    plan = await observer.fetch(f"explain {removing}", uuid4())
    text = "\n".join(line for (line,) in plan)
    assert text.count("jobs_dataset_idx") >= 2
    assert "Seq Scan on jobs" not in text


@pytest.mark.parametrize(
    "statement",
    [
        "insert into haulage.jobs (id, pipeline, dataset_id) values (gen_random_uuid(), 'a', $1)",
        "update haulage.jobs set status = 'pending', finished_at = null where dataset_id = $1",
    ],
    ids=["submitted", "revived"],
)
async def test_a_job_that_begins_to_need_a_dataset_first_keeps_it(
    db: PostgresJobsDB, observer: "asyncpg.Connection[asyncpg.Record]", statement: str
) -> None:
    dataset = await stored(db)
    await observer.execute(
        "insert into haulage.jobs (id, pipeline, dataset_id, status, finished_at)"
        " values (gen_random_uuid(), 'a', $1, 'completed', now())",
        UUID(dataset.id),
    )
    async with observer.transaction():
        await observer.execute(statement, UUID(dataset.id))
        removing = asyncio.ensure_future(db.delete_dataset(dataset.id))
        await until_blocked(observer)

    with pytest.raises(DatasetInUseError):
        await removing
    assert await db.get_dataset(dataset.id) == dataset
    freed = "select count(*) from haulage.jobs where dataset_id is null"
    assert await observer.fetchval(freed) == 0


async def test_a_job_that_names_a_dataset_too_late_is_refused(
    db: PostgresJobsDB, observer: "asyncpg.Connection[asyncpg.Record]", database_url: str
) -> None:
    dataset = await stored(db)
    submitter = await asyncpg.connect(database_url)
    async with observer.transaction():
        await observer.execute(STATEMENTS["delete_dataset"].sql, UUID(dataset.id))
        submitting = asyncio.ensure_future(
            submitter.execute(
                "insert into haulage.jobs (id, pipeline, dataset_id)"
                " values (gen_random_uuid(), 'a', $1)",
                UUID(dataset.id),
            )
        )
        await until_blocked(observer)

    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await submitting
    await submitter.close()


async def until_blocked(observer: "asyncpg.Connection[asyncpg.Record]") -> None:
    async def is_blocked() -> bool:
        found: int = await observer.fetchval(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and wait_event_type = 'Lock'"
        )
        return found == 1

    await eventually(is_blocked, "a session that waits for a lock")


async def test_datasets_of_a_key_are_counted_by_an_index(
    observer: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    await observer.execute(
        "insert into haulage.datasets (id, name, sha256, columns, row_count, submitted_by)"
        " select gen_random_uuid(), 'a.csv', '\\x01', '{text}', 1, 'key-' || n % 100"
        " from generate_series(1, 20000) n; analyze haulage.datasets"
    )

    plan = await observer.fetch(f"explain {STATEMENTS['count_datasets'].sql}", "key-7")

    told = "\n".join(row[0] for row in plan)
    assert "datasets_submitter_idx" in told, told
    assert "Seq Scan" not in told
