"""The chain of revisions: one head, up and down, and the same schema on every way there."""

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
from alembic.config import Config
from alembic.script import Script, ScriptDirectory
from migrations.snapshot import schema_of

from app.db import migrate
from app.db.urls import DatabaseURL
from app.domain.errors import ConfigurationError, DatabaseUnavailableError, SchemaMismatchError
from app.telemetry import Event, Telemetry

ROOT = Path(__file__).parents[2]


def revisions() -> list[Script]:
    """Every revision, oldest first."""
    config = Config()
    config.set_main_option("script_location", str(migrate.migrations_folder()))
    return list(reversed(list(ScriptDirectory.from_config(config).walk_revisions())))


async def run(url: str, statement: str, *arguments: object) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(statement, *arguments)
    finally:
        await connection.close()


def test_there_is_one_head_and_one_line_to_it() -> None:
    chain = revisions()

    assert [script.is_head for script in chain] == [False] * (len(chain) - 1) + [True]
    assert not any(script.is_branch_point or script.is_merge_point for script in chain)
    assert chain[0].down_revision is None
    for script in chain:
        assert Path(script.path).name.startswith(f"{script.revision}_")
        assert script.doc


async def test_the_tables_are_what_the_program_says_after_an_upgrade(database_url: str) -> None:
    assert migrate.differences(DatabaseURL.parse(database_url)) is None


async def test_a_difference_is_told_when_there_is_one(database_url: str) -> None:
    await run(database_url, "drop index haulage.jobs_claim_idx")

    assert "jobs_claim_idx" in (migrate.differences(DatabaseURL.parse(database_url)) or "")


async def test_every_revision_goes_up_down_and_up_again(empty_database_url: str) -> None:
    url = DatabaseURL.parse(empty_database_url)
    previous = "base"
    for script in revisions():
        migrate.upgrade(url, script.revision)
        once = await schema_of(empty_database_url)
        assert migrate.state(url).found == script.revision

        migrate.downgrade(url, previous)
        assert migrate.state(url).found == (None if previous == "base" else previous)
        migrate.upgrade(url, script.revision)

        assert await schema_of(empty_database_url) == once
        previous = script.revision
    assert migrate.differences(url) is None


async def test_nothing_is_left_after_the_way_down(empty_database_url: str) -> None:
    url = DatabaseURL.parse(empty_database_url)
    migrate.upgrade(url)
    migrate.downgrade(url, "base")

    left = await schema_of(empty_database_url)
    assert [line for line in left if "alembic_version" not in line] == []


async def test_a_downgrade_keeps_jobs_from_being_left_without_their_table(
    database_url: str,
) -> None:
    await run(
        database_url,
        "insert into haulage.jobs (id, pipeline) values (gen_random_uuid(), 'demo-echo')",
    )
    url = DatabaseURL.parse(database_url)
    migrate.downgrade(url, "base")
    migrate.upgrade(url)

    assert await run(database_url, "select id from haulage.jobs") == []


async def test_the_offline_script_makes_the_same_schema(
    empty_database_url: str, database_url: str
) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HAULAGE_")}
    done = subprocess.run(  # noqa: ASYNC221  nothing else is to run meanwhile
        [sys.executable, "-m", "alembic", "upgrade", "head", "--sql"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    connection = await asyncpg.connect(empty_database_url)
    try:
        await connection.execute(done.stdout)
    finally:
        await connection.close()

    assert await schema_of(empty_database_url) == await schema_of(database_url)
    url = DatabaseURL.parse(empty_database_url)
    assert migrate.state(url).is_current
    assert migrate.differences(url) is None


async def test_an_upgrade_can_be_called_from_a_running_event_loop(empty_database_url: str) -> None:
    assert asyncio.get_running_loop().is_running()
    url = DatabaseURL.parse(empty_database_url)

    migrate.upgrade(url)
    migrate.upgrade(url)

    assert migrate.state(url).is_current


async def test_an_upgrade_is_told_once(empty_database_url: str) -> None:
    events: list[Event] = []
    url = DatabaseURL.parse(empty_database_url)
    for _ in range(2):
        migrate.upgrade(url, telemetry=Telemetry([events.append]))

    assert events == [
        Event(
            "schema.upgraded",
            {"from_revision": None, "to_revision": migrate.state(url).wanted},
        )
    ]


async def test_loggers_stay_as_they_were(
    empty_database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("somebody.else")
    handlers, level = logging.root.handlers[:], logging.root.level

    migrate.upgrade(DatabaseURL.parse(empty_database_url))

    assert not logger.disabled
    assert (logging.root.handlers, logging.root.level) == (handlers, level)
    with caplog.at_level(logging.INFO):
        logger.info("still heard")
    assert "still heard" in caplog.text


# -- states -----------------------------------------------------------------------------------


async def test_an_empty_database_has_no_revision(empty_database_url: str) -> None:
    state = migrate.state(DatabaseURL.parse(empty_database_url))

    assert (state.found, state.is_ahead, state.is_current) == (None, False, False)
    with pytest.raises(SchemaMismatchError) as caught:
        state.require_current()
    assert caught.value.found is None
    assert caught.value.wanted == revisions()[-1].revision
    assert "haulage db upgrade" in caught.value.remedy
    assert "HAULAGE_AUTO_MIGRATE" in caught.value.remedy


async def test_a_database_that_is_current_is_accepted(database_url: str) -> None:
    state = migrate.state(DatabaseURL.parse(database_url))

    assert state.is_current
    state.require_current()


async def test_a_newer_database_is_refused_and_left_alone(database_url: str) -> None:
    url = DatabaseURL.parse(database_url)
    await run(database_url, "update haulage.alembic_version set version_num = '9999'")

    state = migrate.state(url)
    assert (state.found, state.is_ahead, state.is_current) == ("9999", True, False)
    with pytest.raises(SchemaMismatchError, match="the database is newer; update this program"):
        state.require_current()
    with pytest.raises(SchemaMismatchError, match="the database is newer"):
        migrate.upgrade(url)
    assert migrate.state(url).found == "9999"


async def test_an_unknown_revision_is_refused(database_url: str) -> None:
    url = DatabaseURL.parse(database_url)
    for change in (migrate.upgrade, migrate.downgrade):
        with pytest.raises(ConfigurationError, match="nonsense"):
            change(url, "nonsense")
    assert migrate.state(url).is_current


async def test_a_database_that_is_away_is_unavailable_and_its_password_not_shown() -> None:
    url = DatabaseURL.parse("postgresql://user:s3cret@127.0.0.1:1/db")
    for ask in (migrate.state, migrate.upgrade):
        with pytest.raises(DatabaseUnavailableError) as caught:
            ask(url)
        assert "s3cret" not in str(caught.value)
