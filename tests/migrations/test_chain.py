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
from migrations.snapshot import as_psql_sends, schema_of

from app.db import migrate
from app.db.schema import metadata
from app.db.urls import DatabaseURL
from app.domain.errors import ConfigurationError, DatabaseUnavailableError, SchemaMismatchError
from app.telemetry import Event, Telemetry

ROOT = Path(__file__).parents[2]

# A row or more in every table, by the columns that every revision has: a node, a job of a dataset
# and all that a job leaves.
FILL = """
insert into haulage.nodes (id, name, pid, version, capacity, lease_seconds)
values (:id, 'n', 1, '1', 1, 30);
insert into haulage.queues (name) values ('default');
insert into haulage.api_keys (id, name, prefix, sha256) values (:id, 'k', 'p', '\\x01');
insert into haulage.call_cache (key, answer, model) values ('\\x01', '{}', 'm');
insert into haulage.datasets (id, name, sha256, columns, row_count)
values (:id, 'a.csv', '\\x01', '{text}', 1);
insert into haulage.dataset_rows values (:id, 1, '{kind}');
insert into haulage.jobs (id, pipeline, dataset_id) values (:id, 'demo-echo', :id);
insert into haulage.job_payloads values (:id, '{}');
insert into haulage.job_results (job_id, claim_no, result) values (:id, 1, '{}');
insert into haulage.job_checkpoints (job_id, stage, claim_no, data) values (:id, 'a', 1, '{}');
insert into haulage.job_attempts (job_id, claim_no, attempt, node_id) values (:id, 1, 1, :id);
insert into haulage.job_events (job_id, claim_no, attempt, kind) values (:id, 1, 1, 'status');
insert into haulage.job_logs (job_id, claim_no, attempt, at, level, source, line)
values (:id, 1, 1, now(), 20, 'stdout', 'hello'), (:id, 1, 1, now(), 20, 'stdout', 'again');
insert into haulage.usage (job_id, claim_no, stage, model, cached_calls)
values (:id, 1, 'name', 'm', 2);
insert into haulage.webhook_deliveries (id, job_id, url, event) values (:id, :id, 'u', 'e');
""".replace(":id", "'00000000-0000-7000-8000-000000000001'")
# What revisions 0005, 0009, 0013 and 0015 bring.
FILL_NEW_TABLES = """
insert into haulage.deleted_jobs (id) values (gen_random_uuid());
insert into haulage.webhooks (id, url, events, secret)
values (gen_random_uuid(), 'https://hooks.example', '{job.failed}', 'whsec_x');
insert into haulage.pipelines (name) values ('demo-echo');
insert into haulage.webhook_secrets select id, 'whsec_w', now() from haulage.webhooks
"""
# What revision 0004 brings: calls that were paid, each in a row of its own.
FILL_CALLS = """
insert into haulage.usage (job_id, claim_no, key, stage, model, calls, prompt_tokens, cost)
select id, claim, decode(md5(stage || n), 'hex'), stage, 'm', 1, 10, 0.5
from haulage.jobs, generate_series(1, 2) claim, unnest('{name,assign}'::text[]) stage,
    generate_series(1, 3) n
where stage = 'name' or n = 1
"""


def revisions() -> list[Script]:
    """Every revision, oldest first."""
    config = Config()
    config.set_main_option("script_location", str(migrate.migrations_folder()))
    return list(reversed(list(ScriptDirectory.from_config(config).walk_revisions())))


async def execute(url: str, statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statements)
    finally:
        await connection.close()


async def tables_with_rows(url: str) -> set[str]:
    return {name for name in await tables_of(url) if await run(url, f"select from haulage.{name}")}


async def tables_of(url: str) -> set[str]:
    """Those of ours that there are at this revision."""
    found = await run(url, "select tablename from pg_tables where schemaname = 'haulage'")
    return {row[0] for row in found} & {table.name for table in metadata.sorted_tables}


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


async def test_rows_go_down_and_up_again_with_every_revision(empty_database_url: str) -> None:
    url = DatabaseURL.parse(empty_database_url)
    chain = [script.revision for script in revisions()]
    migrate.upgrade(url, chain[0])
    await execute(empty_database_url, FILL)
    filled = await tables_of(empty_database_url)
    assert await tables_with_rows(empty_database_url) == filled

    migrate.upgrade(url)
    await execute(empty_database_url, FILL_CALLS)
    await execute(empty_database_url, FILL_NEW_TABLES)
    assert await tables_with_rows(empty_database_url) == await tables_of(empty_database_url)
    for previous in reversed(chain[:-1]):
        migrate.downgrade(url, previous)
        migrate.upgrade(url)
        assert await tables_with_rows(empty_database_url) >= filled
        migrate.downgrade(url, previous)
        assert await tables_with_rows(empty_database_url) >= filled


async def test_what_calls_have_used_is_summed_up_on_the_way_down(database_url: str) -> None:
    url = DatabaseURL.parse(database_url)
    await execute(database_url, FILL)
    await execute(database_url, FILL_CALLS)

    migrate.downgrade(url, "0003")
    migrate.upgrade(url)

    rows = await run(
        database_url,
        "select claim_no, stage, key, calls, cached_calls, prompt_tokens, cost::float"
        " from haulage.usage order by claim_no, stage",
    )
    assert [tuple(row) for row in rows] == [
        (1, "assign", None, 1, 0, 10, 0.5),
        (1, "name", None, 3, 2, 30, 1.5),
        (2, "assign", None, 1, 0, 10, 0.5),
        (2, "name", None, 3, 0, 30, 1.5),
    ]


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
        for statements in as_psql_sends(done.stdout):
            await connection.execute(statements)
    finally:
        await connection.close()

    assert await schema_of(empty_database_url) == await schema_of(database_url)
    url = DatabaseURL.parse(empty_database_url)
    assert migrate.state(url).is_current
    assert migrate.differences(url) is None


async def test_an_index_whose_build_was_broken_off_is_built_again(database_url: str) -> None:
    url = DatabaseURL.parse(database_url)
    migrate.downgrade(url, "0005")
    # What a killed build leaves: the name is taken, and no search may use it.
    await execute(
        database_url,
        "create index jobs_ended_idx on haulage.jobs (status);"
        "update pg_index set indisvalid = false"
        " where indexrelid = 'haulage.jobs_ended_idx'::regclass",
    )

    migrate.upgrade(url)

    assert migrate.differences(url) is None
    assert await run(database_url, "select from pg_index where not indisvalid") == []


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
