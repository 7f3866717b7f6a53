"""What the page about jobs from SQL says is so."""

import re
from pathlib import Path

import asyncpg
import pytest
from support.enqueueing import announce

from app.domain.jobs import Registration
from app.enqueueing import Options

PAGE = (Path(__file__).parents[2] / "docs" / "sql-enqueue.md").read_text("utf-8")
ECHO = {"demo-echo": Registration("demo-echo", "app.pipelines.demo:Echo")}


@pytest.fixture
async def connection(database_url: str) -> "asyncpg.Connection[asyncpg.Record]":
    await announce(database_url, ECHO, default="demo-echo")
    return await asyncpg.connect(database_url)


async def test_the_statements_of_the_page_run(
    connection: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    blocks = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    try:
        await connection.execute("create table orders (id int, items jsonb)")
        for block in blocks[:2]:
            await connection.execute(block)
        stored = await connection.fetch("select payload from haulage.job_payloads order by job_id")
        # Roles belong to the whole server: this one never comes into being.
        await connection.execute("begin")
        await connection.execute(blocks[2])
        await connection.execute("set local role shop")
        await connection.execute("select haulage.enqueue('{}')")
        await connection.execute("rollback")
    finally:
        await connection.close()

    assert [row["payload"] for row in stored] == [
        '{"answers": ["Too long a wait", "Friendly staff"]}',
        '{"n": 1}',
    ]


async def test_every_argument_is_told_with_its_type(
    connection: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    try:
        arguments = await connection.fetch(
            "select unnest(proargnames) as name, format_type(unnest(proargtypes), null) as kind"
            " from pg_proc where oid = 'haulage.enqueue'::regproc"
        )
    finally:
        await connection.close()
    short = {"timestamp with time zone": "timestamptz"}

    told = re.findall(r"^\| `([a-z_]+)` \| ([a-z \[\]]+) \|", PAGE, re.MULTILINE)
    assert told == [(row["name"], short.get(row["kind"], row["kind"])) for row in arguments]
    assert [name for name, _ in told[1:]] == list(Options.__annotations__)
