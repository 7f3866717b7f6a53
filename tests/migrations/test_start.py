"""Starting on a given database whose schema is missing, old or newer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.service import ROOT, running
from support.sql import rows, value

from app.db import migrate
from app.db.urls import DatabaseURL


def app(database_url: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HAULAGE_")}
    environment |= {"HAULAGE_DATABASE_URL": database_url, **settings}
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_serving_is_refused_in_one_line_when_the_schema_is_missing(empty_database_url: str) -> None:
    done = app(empty_database_url, "serve", "--port", "0")

    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert "haulage db upgrade" in line
    assert "HAULAGE_AUTO_MIGRATE=true" in line
    assert value(empty_database_url, "select to_regclass('haulage.jobs')::text") is None


def test_serving_starts_when_the_schema_may_be_upgraded(
    empty_database_url: str, tmp_path: Path
) -> None:
    with running("serve", empty_database_url, tmp_path / "log", auto_migrate=True) as service:
        assert service.client.get("/readyz").status_code == 200
        assert service.stop() == 0

    assert migrate.state(DatabaseURL.parse(empty_database_url)).is_current


@pytest.mark.parametrize("arguments", [["serve", "--port", "0"], ["db", "upgrade"]], ids="-".join)
def test_a_newer_schema_is_refused_in_one_line(database_url: str, arguments: list[str]) -> None:
    rows(database_url, "update haulage.alembic_version set version_num = '9999'")

    done = app(database_url, *arguments, HAULAGE_AUTO_MIGRATE="true")

    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "the database is newer" in line
    assert value(database_url, "select version_num from haulage.alembic_version") == "9999"
