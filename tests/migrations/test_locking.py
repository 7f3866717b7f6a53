"""Upgrades behind somebody else's lock."""

import asyncio
import shutil
from pathlib import Path

import asyncpg
import pytest
from migrations.processes import connected
from migrations.snapshot import schema_of
from support.waiting import eventually

from app.db import migrate
from app.db.urls import DatabaseURL
from app.domain.errors import DatabaseUnavailableError

NEXT_REVISION = '''
"""A step that needs the table for itself.

Revision: 9000
"""
from alembic import op
revision = "9000"
down_revision = "{head}"

def upgrade() -> None:
    op.execute("alter table haulage.jobs add column added_later int")

def downgrade() -> None:
    op.execute("alter table haulage.jobs drop column added_later")
'''


@pytest.fixture
def with_next_revision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database_url: str) -> None:
    """A program that is one revision ahead of the database; locks are waited for 100 ms."""
    head = migrate.state(DatabaseURL.parse(database_url)).wanted
    folder = tmp_path / "migrations"
    shutil.copytree(
        migrate.migrations_folder(), folder, ignore=shutil.ignore_patterns("__pycache__")
    )
    (folder / "versions" / "9000_next.py").write_text(NEXT_REVISION.format(head=head).lstrip())
    monkeypatch.setattr(migrate, "migrations_folder", lambda: folder)
    monkeypatch.setattr(migrate, "LOCK_TIMEOUT", "100ms")
    monkeypatch.setattr(migrate, "LOCK_PAUSE_SECONDS", 0.1)


async def blocked_pids(connection: "asyncpg.Connection[asyncpg.Record]") -> set[int]:
    rows = await connection.fetch(
        "select pid from pg_stat_activity where datname = current_database()"
        " and wait_event_type = 'Lock' and query ilike 'alter table%'"
    )
    return {row[0] for row in rows}


@pytest.mark.usefixtures("with_next_revision")
async def test_an_upgrade_lets_others_pass_while_it_waits_for_a_lock(database_url: str) -> None:
    url = DatabaseURL.parse(database_url)
    async with connected(database_url) as reader, connected(database_url) as observer:
        transaction = reader.transaction()
        await transaction.start()
        await reader.execute("lock table haulage.jobs in access share mode")
        upgrading = asyncio.ensure_future(asyncio.to_thread(migrate.upgrade, url))
        await _tries(observer, 2)
        # Behind a waiting ALTER every reader waits too; when it gives up they go on.
        async with asyncio.timeout(10.0):
            await observer.fetchval("select count(*) from haulage.jobs")
        await transaction.rollback()
        await upgrading

    assert migrate.state(url).found == "9000"


@pytest.mark.usefixtures("with_next_revision")
async def test_an_upgrade_gives_up_and_changes_nothing_when_the_lock_is_never_given(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "LOCK_TRIES", 2)
    url = DatabaseURL.parse(database_url)
    before = await schema_of(database_url)
    async with connected(database_url) as reader, reader.transaction():
        await reader.execute("lock table haulage.jobs in access share mode")

        with pytest.raises(DatabaseUnavailableError, match="lock"):
            await asyncio.to_thread(migrate.upgrade, url)

    assert await schema_of(database_url) == before
    migrate.upgrade(url)
    assert migrate.state(url).found == "9000"


@pytest.mark.usefixtures("with_next_revision")
async def test_steps_are_counted_once_when_a_lock_is_given_late(database_url: str) -> None:
    url = DatabaseURL.parse(database_url)
    migrate.downgrade(url, "0003")
    async with connected(database_url) as reader, connected(database_url) as observer:
        transaction = reader.transaction()
        await transaction.start()
        # The second step needs this table, the first one is done by then.
        await reader.execute("lock table haulage.jobs in access share mode")
        downgrading = asyncio.ensure_future(asyncio.to_thread(migrate.downgrade, url, "-2"))
        await _tries(observer, 2)
        assert migrate.state(url).found == "0002"
        await transaction.rollback()
        await downgrading
    assert migrate.state(url).found == "0001"

    async with connected(database_url) as reader, connected(database_url) as observer:
        transaction = reader.transaction()
        await transaction.start()
        await reader.execute("lock table haulage.job_logs in access share mode")
        upgrading = asyncio.ensure_future(asyncio.to_thread(migrate.upgrade, url, "+2"))
        await _tries(observer, 2)
        assert migrate.state(url).found == "0002"
        await transaction.rollback()
        assert await upgrading == migrate.SchemaChange("0001", "0003")
    assert migrate.state(url).found == "0003"


@pytest.mark.usefixtures("with_next_revision")
async def test_others_have_the_table_for_a_while_between_two_tries(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "LOCK_TRIES", 3)
    monkeypatch.setattr(migrate, "LOCK_PAUSE_SECONDS", 1.0)
    seen = []
    async with connected(database_url) as reader, connected(database_url) as observer:
        transaction = reader.transaction()
        await transaction.start()
        await reader.execute("lock table haulage.jobs in access share mode")
        url = DatabaseURL.parse(database_url)
        upgrading = asyncio.ensure_future(asyncio.to_thread(migrate.upgrade, url))
        while not upgrading.done():
            seen.append(bool(await blocked_pids(observer)))
            await asyncio.sleep(0.01)
        await transaction.rollback()

    with pytest.raises(DatabaseUnavailableError, match="3 tries"):
        await upgrading
    # From the first try to the last.
    between = seen[seen.index(True) : len(seen) - seen[::-1].index(True)]
    assert between.count(False) > between.count(True) > 0


async def _tries(observer: "asyncpg.Connection[asyncpg.Record]", count: int) -> None:
    """Return once that many sessions, one after the other, have waited for a lock on a table."""
    seen: set[int] = set()

    async def have_been_seen() -> bool:
        seen.update(await blocked_pids(observer))
        return len(seen) >= count

    await eventually(have_been_seen, f"{count} tries")


async def test_an_upgrade_gives_up_when_another_one_does_not_end(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "ADVISORY_WAIT_SECONDS", 0.2)
    async with connected(empty_database_url) as other:
        await other.execute("select pg_advisory_lock($1)", migrate.ADVISORY_LOCK)

        with pytest.raises(DatabaseUnavailableError, match="another process"):
            await asyncio.to_thread(migrate.upgrade, DatabaseURL.parse(empty_database_url))

    migrate.upgrade(DatabaseURL.parse(empty_database_url))


async def test_the_lock_is_free_again_when_an_upgrade_was_cut_off(
    empty_database_url: str, database_url: str
) -> None:
    async with (
        connected(empty_database_url) as observer,
        connected(empty_database_url) as other,
        other.transaction(),
    ):
        await other.execute("create schema haulage")
        upgrading = asyncio.ensure_future(
            asyncio.to_thread(migrate.upgrade, DatabaseURL.parse(empty_database_url))
        )

        async def was_ended() -> bool:
            rows = await observer.fetch(
                "select pid from pg_stat_activity where datname = current_database()"
                " and wait_event_type = 'Lock' and query ilike 'create schema%'"
            )
            return bool(rows) and bool(
                await observer.fetchval("select pg_terminate_backend($1, 5000)", rows[0][0])
            )

        await eventually(was_ended, "an upgrade in the middle of its work")
        with pytest.raises(Exception, match=r"terminat|closed|connection"):
            await upgrading

    migrate.upgrade(DatabaseURL.parse(empty_database_url))
    assert await schema_of(empty_database_url) == await schema_of(database_url)
