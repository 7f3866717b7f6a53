"""How many connections are left: to a superuser, to others, and under limits of their own."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import asyncpg
import pytest

from app.config import Settings, load_settings
from app.db.ids import new_id
from app.db.postgres.budget import connections_left
from app.db.urls import DatabaseURL
from app.main import Role, warn_of_few_connections
from app.telemetry import Event, Telemetry


@pytest.fixture
async def limited_url(
    observer: "asyncpg.Connection[asyncpg.Record]", database_url: str
) -> AsyncGenerator[str, None]:
    """The database by way of a role that may have three sessions."""
    role = f"limited_{new_id().replace('-', '')}"
    await observer.execute(f"create role {role} login password 'x' connection limit 3")
    yield replace(DatabaseURL.parse(database_url), user=role, password="x").asyncpg_dsn
    await observer.execute(f"drop role {role}")


async def left_at(url: str) -> int | None:
    return await asyncio.to_thread(connections_left, DatabaseURL.parse(url))


async def test_the_server_s_limit_less_what_is_in_use_and_reserved_is_left(
    observer: "asyncpg.Connection[asyncpg.Record]", database_url: str
) -> None:
    most = int(await observer.fetchval("show max_connections"))
    in_use = await observer.fetchval(
        "select count(*) from pg_stat_activity where datname is not null"
    )

    left = await left_at(database_url)

    # Sessions of other tests may still be ending.
    assert left is not None
    assert most - in_use <= left <= most - 1


async def test_a_role_s_own_limit_counts_and_ends_at_nothing(limited_url: str) -> None:
    assert await left_at(limited_url) == 3
    ours = [await asyncpg.connect(limited_url) for _ in range(2)]
    assert await left_at(limited_url) == 1
    ours.append(await asyncpg.connect(limited_url))
    assert await left_at(limited_url) == 0
    for connection in ours:
        await connection.close()


async def test_nothing_is_said_about_a_server_that_cannot_be_asked(database_url: str) -> None:
    assert (
        await left_at(replace(DatabaseURL.parse(database_url), password="no").asyncpg_dsn) is None
    )


@pytest.mark.parametrize(("role", "needed"), [("api", 9), ("worker", 14), ("serve", 23)])
async def test_a_process_says_how_many_connections_it_lacks_and_what_mends_it(
    limited_url: str, role: Role, needed: int, events: list[Event], telemetry: Telemetry
) -> None:
    settings: Settings = load_settings({"max_concurrent_jobs": 2})

    url = DatabaseURL.parse(limited_url)
    await asyncio.to_thread(warn_of_few_connections, url, settings, role, telemetry)

    [event] = events
    assert (event.name, event.fields["needed"]) == ("connections.overcommitted", needed)
    assert event.fields["left"] == 3
    assert "HAULAGE_MAX_CONCURRENT_JOBS" in event.fields["remedy"]
    assert "max_connections" in event.fields["remedy"]


async def test_nothing_is_said_where_there_are_enough(
    database_url: str, events: list[Event], telemetry: Telemetry
) -> None:
    settings = load_settings({"max_concurrent_jobs": 2})
    url = DatabaseURL.parse(database_url)
    await asyncio.to_thread(warn_of_few_connections, url, settings, "serve", telemetry)
    assert events == []
