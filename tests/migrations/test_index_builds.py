"""Indexes built beside the writers: nobody waits, and a build that was broken off is mended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from click.testing import CliRunner, Result
from migrations.processes import connected, upgrades, waiting_pid
from migrations.snapshot import schema_of

from app.cli.database import database
from app.db import migrate
from app.db.urls import DatabaseURL
from app.domain.errors import DatabaseUnavailableError

# The last revision before a step that builds indexes.
BEFORE = "0005"
ADD = "insert into haulage.jobs (id, pipeline) values (gen_random_uuid(), 'p')"
BUILD = "create index concurrently"


@asynccontextmanager
async def writing(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A writer in the middle of its transaction: every build waits for its end."""
    async with connected(url) as holder, holder.transaction():
        await holder.execute(ADD)
        yield holder


async def test_an_index_is_built_while_jobs_are_written(database_url: str) -> None:
    url = DatabaseURL.parse(database_url)
    migrate.downgrade(url, BEFORE)
    async with connected(database_url) as other:
        async with writing(database_url):
            upgrading = asyncio.create_task(asyncio.to_thread(migrate.upgrade, url))
            await waiting_pid(other, BUILD)
            # Nobody waits behind it.
            await other.execute("set lock_timeout = '300ms'")
            await other.execute(ADD)
            await other.execute("update haulage.jobs set priority = 1")
        await upgrading

    assert migrate.state(url).is_current
    assert migrate.differences(url) is None


async def test_the_next_upgrade_builds_anew_when_a_build_lost_its_session(
    database_url: str,
) -> None:
    url = DatabaseURL.parse(database_url)
    wanted = await schema_of(database_url)
    migrate.downgrade(url, BEFORE)
    async with connected(database_url) as other, writing(database_url):
        upgrading = asyncio.create_task(asyncio.to_thread(migrate.upgrade, url))
        pid = await waiting_pid(other, BUILD)
        assert await other.fetchval("select pg_terminate_backend($1, 5000)", pid)
        with pytest.raises(DatabaseUnavailableError, match="try again"):
            await upgrading
    assert migrate.invalid_indexes(url) == ["jobs_ended_idx"]

    migrate.upgrade(url)

    assert await schema_of(database_url) == wanted


async def test_the_next_upgrade_builds_anew_when_a_killed_one_still_builds(
    database_url: str,
) -> None:
    url = DatabaseURL.parse(database_url)
    wanted = await schema_of(database_url)
    migrate.downgrade(url, BEFORE)
    async with connected(database_url) as other:
        async with writing(database_url):
            await _kill_an_upgrade(database_url, other)
            # The server has not noticed: the build goes on waiting, and the next upgrade for it.
            upgrading = asyncio.create_task(asyncio.to_thread(migrate.upgrade, url))
            await waiting_pid(other, "drop index concurrently")
        await upgrading

    assert await schema_of(database_url) == wanted


async def test_the_next_upgrade_builds_anew_when_a_killed_one_has_ended(database_url: str) -> None:
    url = DatabaseURL.parse(database_url)
    wanted = await schema_of(database_url)
    migrate.downgrade(url, BEFORE)
    async with connected(database_url) as other, writing(database_url):
        pid = await _kill_an_upgrade(database_url, other)
        assert await other.fetchval("select pg_terminate_backend($1, 5000)", pid)
    assert migrate.invalid_indexes(url) == ["jobs_ended_idx"]

    migrate.upgrade(url)

    assert await schema_of(database_url) == wanted


async def test_an_upgrade_mends_indexes_when_the_revision_is_the_newest(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAULAGE_DATABASE_URL", database_url)
    wanted = await schema_of(database_url)
    async with connected(database_url) as other, connected(database_url) as builder:
        # What somebody leaves whose rebuild was broken off, and whose build was.
        async with writing(database_url):
            rebuilding = asyncio.ensure_future(
                builder.execute("reindex index concurrently haulage.jobs_claim_idx")
            )
            pid = await waiting_pid(other, "reindex")
            assert await other.fetchval("select pg_terminate_backend($1, 5000)", pid)
            with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
                await rebuilding
        await other.execute(
            "update pg_index set indisvalid = false"
            " where indexrelid = 'haulage.jobs_running_idx'::regclass"
        )
    broken = ["jobs_claim_idx_ccnew", "jobs_running_idx"]

    checked = await _command("check")
    assert checked.exit_code == 1
    assert [line.partition(":")[0] for line in checked.stderr.splitlines()[:2]] == broken
    assert "haulage db upgrade" in checked.stderr

    done = await _command("upgrade")
    assert done.exit_code == 0
    assert [line.partition(":")[0] for line in done.stdout.splitlines()[1:]] == broken
    assert (await _command("check")).exit_code == 0
    assert (await _command("upgrade")).stdout.count("\n") == 1
    assert await schema_of(database_url) == wanted


async def _command(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, database, arguments)


async def _kill_an_upgrade(url: str, other: "asyncpg.Connection[asyncpg.Record]") -> int:
    """SIGKILL one that waits in the middle of a build; the pid of the session that it leaves."""
    with upgrades(url) as [process]:
        pid = await waiting_pid(other, BUILD)
        process.kill()
        await asyncio.to_thread(process.wait)
    return pid
