"""Services tell the database what they can run."""

import asyncio
from dataclasses import replace
from uuid import uuid4

import asyncpg
import pytest
from support.enqueueing import DEFAULT, REGISTRATIONS, announce, enqueue
from support.sessions import until_waiting

from app.config import load_settings
from app.db.urls import DatabaseURL
from app.domain.jobs import Registration
from app.main import announce as announce_to_database
from app.telemetry import Event, Telemetry


async def pipeline_of(observer: "asyncpg.Connection[asyncpg.Record]") -> str:
    """That of a job which names none."""
    job_id = await enqueue(observer, {})
    name: str = await observer.fetchval(
        "select pipeline from haulage.jobs where id = $1::text::uuid", job_id
    )
    return name


async def test_a_later_start_changes_what_it_names_and_keeps_the_rest(
    database_url: str, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await announce(database_url)
    changed = {"limited": replace(REGISTRATIONS["limited"], max_attempts=None)}
    await announce(database_url, changed, default=None)

    found = await observer.fetch("select name, max_attempts from haulage.pipelines order by name")
    assert [tuple(row) for row in found] == [("limited", None), ("plain", None), ("reading", None)]
    assert await pipeline_of(observer) == DEFAULT


async def test_what_others_told_stays_where_a_class_could_not_be_asked(
    database_url: str, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await announce(database_url)
    silent = {name: Registration(name, "nowhere:Silent") for name in ("reading", "new")}

    await announce(database_url, silent, default="reading", unasked=list(silent))

    found = await observer.fetch(
        "select name, memory_limit_bytes, takes_dataset from haulage.pipelines"
        " where name in ('reading', 'new') order by name"
    )
    assert [tuple(row) for row in found] == [("new", None, False), ("reading", 2**31, True)]
    assert await pipeline_of(observer) == "reading"


async def test_the_default_is_the_one_that_was_called_so_last(
    database_url: str, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    for name in ("plain", "reading", "limited", "reading"):
        await announce(database_url, default=name)
        assert await pipeline_of(observer) == name


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_services_that_start_together_wait_for_each_other(
    database_url: str, observer: "asyncpg.Connection[asyncpg.Record]", end: str
) -> None:
    await announce(database_url)
    first = await asyncpg.connect(database_url)
    try:
        await first.execute("begin; update haulage.pipelines set defaulted_at = now()")
        other = asyncio.create_task(announce(database_url, default="reading"))
        await until_waiting(observer, first)
        await first.execute(end)
        await other
    finally:
        await first.close()

    assert await pipeline_of(observer) == "reading"


@pytest.mark.parametrize("fault", ["away", "no right"])
async def test_a_service_starts_all_the_same_when_it_cannot_tell(
    database_url: str,
    observer: "asyncpg.Connection[asyncpg.Record]",
    events: list[Event],
    telemetry: Telemetry,
    fault: str,
) -> None:
    url = DatabaseURL.parse(database_url)
    role = f"haulage_test_{uuid4().hex}"
    if fault == "away":
        url = replace(url, hosts=(("127.0.0.1", 1),))
    else:
        await observer.execute(f"create role {role} login password 'x'")
        await observer.execute(f"grant usage on schema haulage to {role}")
        url = replace(url, user=role, password="x")
    try:
        settings = load_settings()
        await asyncio.to_thread(
            announce_to_database, url, settings, "serve", REGISTRATIONS, telemetry
        )
    finally:
        if fault != "away":
            await observer.execute(f"drop owned by {role}; drop role {role}")

    [event] = events
    assert event.name == "pipelines.unannounced"
    assert ("permission denied" in event.fields["reason"]) is (fault == "no right")
    assert await observer.fetchval("select count(*) from haulage.pipelines") == 0
