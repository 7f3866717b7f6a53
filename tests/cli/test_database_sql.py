"""`haulage db sql`: the steps of the schema as a script for somebody else to run."""

import os
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
from click.testing import CliRunner
from migrations.snapshot import as_psql_sends, schema_of

from app.cli.database import database
from app.db import migrate
from app.db.urls import DatabaseURL
from app.domain.errors import ConfigurationError

ROOT = Path(__file__).parents[2]


def printed(folder: Path, *arguments: str) -> str:
    """What the command prints where no database is set and nothing may be started."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HAULAGE_", "DATABASE_"))}
    done = subprocess.run(
        [sys.executable, "-m", "app", "db", "sql", *arguments],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT), "HAULAGE_DATA_DIR": str(folder / "data")},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert not (folder / "data").exists()
    return done.stdout


async def apply(url: str, script: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statements in as_psql_sends(script):
            await connection.execute(statements)
    finally:
        await connection.close()


@pytest.mark.parametrize("revisions", [[], ["head"], ["base:head"]], ids=str)
async def test_the_whole_script_makes_the_same_schema(
    empty_database_url: str, database_url: str, tmp_path: Path, revisions: list[str]
) -> None:
    await apply(empty_database_url, printed(tmp_path, *revisions))

    assert await schema_of(empty_database_url) == await schema_of(database_url)
    url = DatabaseURL.parse(empty_database_url)
    assert migrate.state(url).is_current
    assert migrate.differences(url) is None


async def test_a_part_leads_from_one_revision_to_another_and_back(
    empty_database_url: str, database_url: str, tmp_path: Path
) -> None:
    url = DatabaseURL.parse(empty_database_url)
    migrate.upgrade(url, "0007")
    before = await schema_of(empty_database_url)

    await apply(empty_database_url, printed(tmp_path, "0007:head"))
    assert await schema_of(empty_database_url) == await schema_of(database_url)
    await apply(empty_database_url, printed(tmp_path, "--down", "head:0007"))

    assert await schema_of(empty_database_url) == before
    assert migrate.state(url).found == "0007"


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["0001:nonsense"], ["--down", "head"]], ids=str
)
def test_revisions_that_are_none_are_refused(arguments: list[str]) -> None:
    done = CliRunner().invoke(database, ["sql", *arguments])

    assert isinstance(done.exception, ConfigurationError)
    assert done.stdout == ""
