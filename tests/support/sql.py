"""One statement on a connection of its own, from a test without an event loop."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg


def rows(url: str, statement: str, *arguments: Any) -> list[asyncpg.Record]:
    """All rows."""

    async def fetch() -> list[asyncpg.Record]:
        connection = await asyncpg.connect(url, server_settings={"application_name": "test"})
        try:
            return await connection.fetch(statement, *arguments)
        finally:
            await connection.close()

    return asyncio.run(fetch())


def value(url: str, statement: str, *arguments: Any) -> Any:
    """The first column of the only row."""
    [row] = rows(url, statement, *arguments)
    return row[0]


def script(url: str, statements: str) -> None:
    """All of it in one go, as psql does."""

    async def execute() -> None:
        connection = await asyncpg.connect(url, server_settings={"application_name": "test"})
        try:
            await connection.execute(statements)
        finally:
            await connection.close()

    asyncio.run(execute())


def attempts(url: str, job_id: str) -> list[asyncpg.Record]:
    """Every claim of the job, oldest first."""
    return rows(
        url,
        "select * from haulage.job_attempts where job_id = $1::text::uuid order by claim_no",
        job_id,
    )


def make_due(url: str, job_id: str) -> None:
    """Spare a job the rest of its backoff and wake the schedulers."""
    rows(url, "update haulage.jobs set run_at = now() where id = $1::text::uuid", job_id)
    rows(url, "notify haulage_wake")


@contextmanager
def holding(url: str, statement: str) -> Iterator[None]:
    """Keep the locks that the statement takes."""
    with asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(url))
        try:
            runner.run(connection.execute("begin"))
            runner.run(connection.execute(statement))
            yield
        finally:
            runner.run(connection.close())


@contextmanager
def kept_session(url: str) -> Iterator[Callable[..., list[asyncpg.Record]]]:
    """A session to look on with where a new one might not be had; gives its `rows`."""
    with asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(url, server_settings={"application_name": "test"}))
        try:
            yield lambda statement: runner.run(connection.fetch(statement))
        finally:
            runner.run(connection.close())


def our_connections(url: str) -> list[str]:
    """Application names of Haulage's own sessions in this database."""
    found = rows(
        url,
        "select application_name from pg_stat_activity"
        " where datname = current_database() and application_name like 'haulage%'",
    )
    return [row[0] for row in found]


def our_pids(url: str, *applications: str) -> list[int]:
    """The server's processes that belong to these applications' sessions in this database."""
    found = rows(
        url,
        "select pid from pg_stat_activity"
        " where datname = current_database() and application_name = any ($1)",
        applications,
    )
    return [row[0] for row in found]


def insert_job(
    url: str, pipeline: str, payload: str = "{}", count: int = 1, *, notify: bool = True
) -> list[str]:
    """Store pending jobs without any service, and wake whoever listens; their ids."""
    found = rows(
        url,
        "with job as (insert into haulage.jobs (id, pipeline)"
        "  select gen_random_uuid(), $1 from generate_series(1, $3) returning id),"
        " payload as (insert into haulage.job_payloads (job_id, payload)"
        "  select id, $2::jsonb from job)"
        " select id::text from job",
        pipeline,
        payload,
        count,
    )
    if notify:
        rows(url, "notify haulage_wake")
    return [row[0] for row in found]


def job_row(url: str, job_id: str) -> asyncpg.Record:
    """The job's own row."""
    [row] = rows(url, "select * from haulage.jobs where id = $1::text::uuid", job_id)
    return row


def milestones(url: str, job_id: str) -> dict[str, str | None]:
    """Message by stage, in the order in which the job entered them."""
    found = rows(
        url,
        "select stage, message from haulage.job_events"
        " where job_id = $1::text::uuid and kind = 'milestone' order by id",
        job_id,
    )
    return {row["stage"]: row["message"] for row in found}
