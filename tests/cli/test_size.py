"""`haulage db stats` on a real database."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner
from support.sql import rows, value
from support.waiting import eventually

from app.cli.database import database
from app.cli.size import as_json
from app.domain.size import DatabaseSize, SnapshotHolder

JOBS = "insert into haulage.jobs (id, pipeline) select gen_random_uuid(), 'p' from generate_series"
# Nothing is cleaned up before the test has looked.
BY_HAND = "alter table haulage.jobs set (autovacuum_enabled = false)"


@pytest.fixture(autouse=True)
def _database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAULAGE_DATABASE_URL", database_url)
    monkeypatch.setenv("COLUMNS", "160")


def stats(*arguments: str) -> str:
    done = CliRunner().invoke(database, ["stats", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def told(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stats("--json", *arguments))
    return found


def table(name: str) -> dict[str, Any]:
    [found] = [table for table in told()["tables"] if table["name"] == name]
    return dict(found)


@contextmanager
def reading(url: str) -> Iterator[int]:
    """A transaction that keeps its snapshot; the pid of its session."""
    with asyncio.Runner() as runner:
        settings = {"application_name": "a report"}
        session = runner.run(asyncpg.connect(url, server_settings=settings))
        try:
            runner.run(session.execute("begin isolation level repeatable read"))
            runner.run(session.execute("select count(*) from haulage.jobs"))
            yield session.get_server_pid()
        finally:
            runner.run(session.close())


def test_every_table_of_ours_is_told_with_its_bytes(database_url: str) -> None:
    rows(database_url, f"{JOBS}(1, 1000)")
    payload = "insert into haulage.job_payloads select id, to_jsonb(repeat(md5(id::text), 9000))"
    rows(database_url, f"{payload} from haulage.jobs limit 3")
    rows(database_url, "analyze haulage.jobs")

    found = {table["name"]: table for table in told()["tables"]}

    names = rows(database_url, "select tablename from pg_tables where schemaname = 'haulage'")
    assert found.keys() == {row[0] for row in names}
    sizes = rows(
        database_url,
        "select tablename, pg_total_relation_size('haulage.' || tablename)"
        " from pg_tables where schemaname = 'haulage'",
    )
    kinds = ("table_bytes", "index_bytes", "toast_bytes")
    assert {name: sum(t[kind] for kind in kinds) for name, t in found.items()} == {
        row[0]: row[1] for row in sizes
    }
    assert found["job_payloads"]["toast_bytes"] > 8192
    assert (found["jobs"]["rows"], found["jobs"]["dead_rows"]) == (1000, 0)
    assert found["jobs"]["analyzed_at"] is not None
    assert found["jobs"]["vacuumed_at"] is None
    assert "1,000" in stats()


def test_dead_rows_are_counted_until_a_vacuum(database_url: str) -> None:
    rows(database_url, BY_HAND)
    rows(database_url, f"{JOBS}(1, 1000)")
    rows(
        database_url, "delete from haulage.jobs where id in (select id from haulage.jobs limit 400)"
    )
    rows(database_url, "analyze haulage.jobs")
    assert (table("jobs")["rows"], table("jobs")["dead_rows"]) == (600, 400)

    rows(database_url, "vacuum haulage.jobs")

    async def is_clean() -> bool:
        found = await asyncio.to_thread(table, "jobs")
        return bool(found["dead_rows"] == 0)

    asyncio.run(eventually(is_clean, "no dead rows"))
    assert table("jobs")["vacuumed_at"] is not None


def test_a_held_snapshot_is_told_with_its_owner_and_warned_of_when_it_is_old(
    database_url: str,
) -> None:
    assert told()["snapshots"] == []
    with reading(database_url) as pid:
        for _ in range(3):
            rows(database_url, f"{JOBS}(1, 1)")
        found = told()
        [holder] = found["snapshots"]
        assert (holder["kind"], holder["name"], holder["pid"]) == ("session", "a report", pid)
        assert holder["owner"] == value(database_url, "select current_user::text")
        assert holder["state"] == "idle in transaction"
        assert holder["query"] == "select count(*) from haulage.jobs"
        assert holder["since"] <= holder["query_started_at"]
        assert holder["age_transactions"] >= 3
        assert found["warnings"] == []

        [warning] = told("--warn-seconds", "0")["warnings"]
        assert f"session a report of {holder['owner']} (pid {pid})" in warning
        shown = stats("--warn-seconds", "0")
        assert "Oldest snapshots" in shown
        assert f"! {warning}" in shown


def test_a_transaction_that_wrote_holds_rows_back_too(database_url: str) -> None:
    with asyncio.Runner() as runner:
        session = runner.run(asyncpg.connect(database_url))
        try:
            runner.run(session.execute(f"begin; {JOBS}(1, 1)"))
            [holder] = told()["snapshots"]
            assert holder["pid"] == session.get_server_pid()
        finally:
            runner.run(session.close())


def test_a_slot_that_nobody_reads_is_warned_of_at_any_age() -> None:
    def warned(state: str) -> bool:
        slot = SnapshotHolder(
            "replication slot", "standby", None, None, state, None, None, None, 12_345, None
        )
        found = json.loads(as_json(DatabaseSize((), (), (slot,)), 300.0))
        return any("standby" in line and "12,345" in line for line in found["warnings"])

    assert warned("inactive")
    assert not warned("active")


def test_an_index_is_bloated_when_most_of_its_entries_went(database_url: str) -> None:
    rows(database_url, BY_HAND)
    rows(database_url, f"{JOBS}(1, 60000)")
    rows(database_url, "vacuum analyze haulage.jobs")

    def index(name: str) -> dict[str, Any]:
        [found] = [index for index in told()["indexes"] if index["name"] == name]
        return dict(found)

    # Random ids fill their pages by about two thirds.
    assert 0 <= index("jobs_pkey")["bloat_bytes"] < 0.5 * index("jobs_pkey")["bytes"]

    rows(
        database_url,
        "delete from haulage.jobs where id not in (select id from haulage.jobs limit 100)",
    )
    rows(database_url, "vacuum analyze haulage.jobs")
    assert index("jobs_pkey")["bloat_bytes"] > 0.9 * index("jobs_pkey")["bytes"]
    assert "jobs_pkey" in stats().partition("Bloated index")[2]

    rows(database_url, "reindex index haulage.jobs_pkey")
    assert index("jobs_pkey")["bloat_bytes"] <= 8192
    # Without statistics nothing is claimed.
    assert index("usage_pkey")["expected_bytes"] is None
    assert index("usage_pkey")["bloat_bytes"] is None


def test_the_size_of_an_index_over_an_expression_is_estimated_and_of_no_b_tree_unknown(
    database_url: str,
) -> None:
    rows(database_url, f"{JOBS}(1, 5000)")
    rows(database_url, "create index operators_own on haulage.jobs ((queue || pipeline))")
    rows(database_url, "create index operators_tags on haulage.jobs using gin (tags)")
    rows(database_url, "analyze haulage.jobs")

    expected = {index["name"]: index["expected_bytes"] for index in told()["indexes"]}

    assert expected["operators_own"] > 8192
    assert expected["operators_tags"] is None


def test_an_index_that_no_search_uses_is_warned_of(database_url: str) -> None:
    rows(
        database_url,
        "update pg_index set indisvalid = false"
        " where indexrelid = 'haulage.jobs_batch_idx'::regclass",
    )

    [warning] = told()["warnings"]

    assert "jobs_batch_idx" in warning
    assert "haulage db upgrade" in warning
