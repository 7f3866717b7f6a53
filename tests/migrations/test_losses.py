"""What `haulage db downgrade` says before it does anything."""

import pytest
from click.testing import CliRunner, Result
from migrations.test_chain import FILL, FILL_NEW_TABLES, revisions
from support.sql import rows

from app.cli.database import database
from app.db import losses, migrate
from app.db.losses import downgrade_losses
from app.db.urls import DatabaseURL
from app.domain.errors import ConfigurationError, SchemaInUseError


@pytest.fixture
def url(database_url: str) -> DatabaseURL:
    """A database with a row or more in every table."""
    for statement in (FILL + FILL_NEW_TABLES).split(";"):
        if statement.strip():
            rows(database_url, statement)
    return DatabaseURL.parse(database_url)


def downgrade(url: DatabaseURL, *arguments: str, answer: str = "") -> Result:
    environment = {"HAULAGE_DATABASE_URL": url.asyncpg_dsn}
    return CliRunner().invoke(database, ["downgrade", *arguments], input=answer, env=environment)


def test_a_downgrade_tells_what_goes_and_waits_for_a_yes(url: DatabaseURL) -> None:
    rows(url.asyncpg_dsn, "update haulage.jobs set start_timeout_seconds = 3")
    before = migrate.state(url).found

    refused = downgrade(url, "0001", answer="n\n")

    assert refused.exit_code == 1
    assert migrate.state(url).found == before
    lines = refused.stdout.splitlines()
    for told in (
        "drops table haulage.webhooks: 1 row",
        "drops column haulage.webhook_deliveries.webhook_id: set in 0 rows",
        "drops column haulage.jobs.start_timeout_seconds: set in 1 row",
        "drops column haulage.job_logs.line_no: set in 2 rows",
        "drops view reporting.jobs",
    ):
        assert told in lines
    assert "0009: Loses the endpoints with their secrets; " in refused.stdout
    assert "Go on? [y/N]" in refused.stdout

    assert downgrade(url, "0001", answer="y\n").exit_code == 0
    assert migrate.state(url).found == "0001"


def test_a_downgrade_to_nothing_names_every_table_once(url: DatabaseURL) -> None:
    done = downgrade(url, "base", "--yes")

    assert done.exit_code == 0, done.output
    tables = [line for line in done.stdout.splitlines() if line.startswith("drops table ")]
    names = [line.split()[2].removesuffix(":") for line in tables]
    assert len(names) == len(set(names))
    assert "drops table haulage.jobs: 1 row" in tables
    assert "haulage.alembic_version" not in names
    # Their columns go with them.
    assert "drops column haulage.jobs.start_timeout_seconds" not in done.stdout
    assert rows(url.asyncpg_dsn, "select from pg_tables where tablename = 'jobs'") == []


def test_nothing_is_told_where_nothing_goes(url: DatabaseURL) -> None:
    assert downgrade_losses(url, migrate.state(url).wanted) == []


def test_steps_back_are_counted_from_the_revision_of_the_database(url: DatabaseURL) -> None:
    assert downgrade_losses(url, "-1") == downgrade_losses(url, revisions()[-2].revision)
    migrate.downgrade(url, "0004")

    assert downgrade_losses(url, "-2") == downgrade_losses(url, "0002") != []
    with pytest.raises(ConfigurationError, match="only 4 steps"):
        downgrade_losses(url, "-5")


def test_a_downgrade_says_in_a_line_what_others_have_built_on_a_view(url: DatabaseURL) -> None:
    rows(url.asyncpg_dsn, "create view public.theirs as select id from reporting.jobs")

    done = downgrade(url, "0010", "--yes")

    assert isinstance(done.exception, SchemaInUseError)
    assert "view theirs depends on view reporting.jobs" in str(done.exception)
    assert "\n" not in str(done.exception)
    # The steps before it were made; what is in use stayed as it was.
    assert migrate.state(url).found == "0011"
    rows(url.asyncpg_dsn, "drop view public.theirs")
    assert downgrade(url, "0010", "--yes").exit_code == 0


def test_an_unknown_revision_is_refused(url: DatabaseURL) -> None:
    with pytest.raises(ConfigurationError, match="nonsense"):
        downgrade_losses(url, "nonsense")


def test_many_rows_are_not_counted_to_the_end(
    url: DatabaseURL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "COUNTED_ROWS", 1)

    assert "drops column haulage.job_logs.line_no: set in more than 1 rows" in downgrade_losses(
        url, "0002"
    )


def test_every_step_that_drops_something_says_what_that_means(database_url: str) -> None:
    url = DatabaseURL.parse(database_url)
    chain = [script.revision for script in revisions()]
    for revision, previous in zip(reversed(chain), [*reversed(chain[:-1]), "base"], strict=True):
        told = downgrade_losses(url, previous)
        dropped = [line for line in told if line.startswith("drops ")]
        assert not dropped or told[-1].startswith(f"{revision}: "), revision
        migrate.downgrade(url, previous)
