"""What every view keeps to: comments, types that tools understand, and nothing secret."""

from uuid import UUID

import pytest
from contract.steps import CALL, LINE, PROGRESS, claimed, complete, keyed, new_job
from reporting.rows import Session

from app.db.definitions import ORDER
from app.db.postgres.adapter import PostgresJobsDB

# Grafana wants real times, spreadsheets and BI tools plain numbers; numeric seconds add up exactly.
TYPES = {
    "uuid",
    "text",
    "boolean",
    "smallint",
    "integer",
    "bigint",
    "numeric",
    "date",
    "timestamp with time zone",
}
VIEWS = """
select c.relname as view, c.relkind = 'v' as is_view,
    obj_description(c.oid, 'pg_class') as comment
from pg_class c
where c.relnamespace = 'reporting'::regnamespace
"""
COLUMNS = """
select c.relname || '.' || a.attname as column, format_type(a.atttypid, a.atttypmod) as type,
    col_description(c.oid, a.attnum) as comment
from pg_attribute a
join pg_class c on c.oid = a.attrelid
where c.relnamespace = 'reporting'::regnamespace and a.attnum > 0
"""
SECRET = "what-nobody-may-read"  # noqa: S105  this is the point


def is_sentence(comment: str | None) -> bool:
    return comment is not None and comment[-1] == "." and len(comment) > len("The job")


async def test_there_are_the_views_of_the_files_and_nothing_else(session: Session) -> None:
    found = await session.fetch(VIEWS)

    assert {row["view"] for row in found} == set(ORDER["reporting"])
    assert all(row["is_view"] for row in found)


async def test_every_view_and_column_has_a_comment(session: Session) -> None:
    views, columns = await session.fetch(VIEWS), await session.fetch(COLUMNS)

    assert [row["view"] for row in views if not is_sentence(row["comment"])] == []
    assert [row["column"] for row in columns if not is_sentence(row["comment"])] == []


async def test_a_missing_comment_is_found_when_a_view_loses_it(session: Session) -> None:
    await session.execute("comment on column reporting.jobs.id is null")

    columns = await session.fetch(COLUMNS)
    assert [row["column"] for row in columns if not is_sentence(row["comment"])] == ["jobs.id"]


async def test_columns_have_types_that_every_tool_reads(session: Session) -> None:
    columns = {row["column"]: row["type"] for row in await session.fetch(COLUMNS)}

    assert {name: kind for name, kind in columns.items() if kind not in TYPES} == {}
    instants = {kind for name, kind in columns.items() if name.endswith("_at")}
    assert instants == {"timestamp with time zone"}
    assert {kind for name, kind in columns.items() if "_seconds" in name} == {"numeric"}


@pytest.fixture
async def _job_with_secrets(db: PostgresJobsDB, session: Session) -> None:
    """A job that left something everywhere, and the mark of a secret wherever one may lie."""
    await new_job(db, {"password": SECRET})
    job = await claimed(db, tags=("a",), priority=1)
    await db.report_progress(job.claim, PROGRESS, is_milestone=True)
    await db.append_logs(job.claim, [LINE])
    await db.save_checkpoint(job.claim, "stage", f'"{SECRET}"')
    await db.save_call(job.claim, CALL)
    await complete(db, job, f'"{SECRET}"')
    await db.insert_pending_job({}, keyed())
    await session.execute("update haulage.job_logs set line = $1, source = $1", SECRET)
    await session.execute("update haulage.call_cache set answer = to_jsonb($1::text)", SECRET)
    await session.execute(
        "insert into haulage.api_keys (id, name, prefix, sha256) values ($1, 'key', $2, $3)",
        UUID(int=1),
        SECRET,
        SECRET.encode(),
    )
    await session.execute(
        "insert into haulage.webhooks (id, url, events, secret) values ($1, $2, '{}', $2)",
        UUID(int=2),
        SECRET,
    )


@pytest.mark.usefixtures("_job_with_secrets")
@pytest.mark.parametrize("name", ORDER["reporting"])
async def test_nothing_secret_shows_in(name: str, session: Session) -> None:
    told = await session.fetch(f"select v::text from reporting.{name} as v")  # noqa: S608

    assert [row for row in told if SECRET in row[0] or SECRET.encode().hex() in row[0]] == []


@pytest.mark.usefixtures("_job_with_secrets")
async def test_the_secrets_of_that_test_are_there(session: Session) -> None:
    for table in ("job_payloads", "job_results", "job_checkpoints", "job_logs", "webhooks"):
        told = await session.fetch(f"select t::text from haulage.{table} as t")  # noqa: S608
        assert any(SECRET in row[0] for row in told), table
