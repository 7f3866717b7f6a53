"""Programs of earlier revisions run beside the newest schema: their statements still do.

`migrations/freeze.py statements REVISION` writes the copies. One goes when the step comes that
contracts what it reads, once no such program runs any more.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from migrations.processes import connected
from migrations.test_chain import revisions

from app.db.postgres.statements import Statement, parse

COPIES = Path(__file__).parent / "statements"
FROZEN = {path.stem: parse(path.read_text("utf-8")) for path in sorted(COPIES.glob("*.sql"))}

ONE = UUID("00000000-0000-7000-8000-000000000001")
# A running job and whatever else a statement may look for, all under one id.
SEED = f"""
insert into haulage.nodes (id, name, pid, version, capacity, lease_seconds)
values ('{ONE}', 'n', 1, '1', 1, 600);
insert into haulage.datasets (id, name, sha256, columns, row_count)
values ('{ONE}', 'a.csv', '\\x01', '{{text}}', 1);
insert into haulage.jobs (id, pipeline, status, claim_no, attempt, node_id, started_at)
values ('{ONE}', 'p', 'running', 1, 1, '{ONE}', now());
insert into haulage.jobs (id, pipeline) values (gen_random_uuid(), 'p');
insert into haulage.job_payloads values ('{ONE}', '{{}}');
insert into haulage.job_attempts (job_id, claim_no, attempt, node_id)
values ('{ONE}', 1, 1, '{ONE}');
insert into haulage.webhooks (id, url, events, secret)
values ('{ONE}', 'https://hooks.example', '{{job.completed}}', 's');
insert into haulage.webhook_deliveries (id, job_id, webhook_id, url, event)
values ('{ONE}', '{ONE}', '{ONE}', 'u', 'job.completed');
"""  # noqa: S608  constants
# The text is a status and an outcome; the texts of a list are JSON too, as arrays in arrays are.
EXAMPLES: MappingProxyType[str, Any] = MappingProxyType(
    {
        "uuid": ONE,
        "text": "completed",
        "int2": 1,
        "int4": 1,
        "int8": 1,
        "float8": 1.0,
        "bool": False,
        "bytea": b"\x02",
        "jsonb": "{}",
        "timestamptz": datetime(2026, 1, 1, tzinfo=UTC),
    }
)
LISTED = MappingProxyType({**EXAMPLES, "text": "[]"})
# Texts that have to be one of a few others.
TEXTS = MappingProxyType(
    {"set_node_state": "draining", "end_try": "delivered", "insert_pending_jobs": "1s"}
)


@asynccontextmanager
async def seeded(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    async with connected(url) as connection:
        await connection.execute(SEED)
        yield connection


async def unfit(
    connection: "asyncpg.Connection[asyncpg.Record]", statements: list[Statement]
) -> dict[str, str]:
    """What the server says to statements that it does not run, by name. Nothing stays written."""
    found: dict[str, str] = {}
    for statement in statements:
        transaction = connection.transaction()
        await transaction.start()
        try:
            prepared = await connection.prepare(statement.sql)
            wanted = [parameter.name for parameter in prepared.get_parameters()]
            await prepared.fetch(*(_example(statement.name, kind) for kind in wanted))
        except asyncpg.UniqueViolationError:
            pass  # there already: the row was complete, or it would have been refused before
        except asyncpg.PostgresError as error:
            found[statement.name] = str(error)
        finally:
            await transaction.rollback()
    return found


def _example(statement: str, kind: str) -> Any:
    if kind.endswith("[]"):
        return [LISTED[kind.removesuffix("[]")]]
    return TEXTS.get(statement, EXAMPLES[kind]) if kind == "text" else EXAMPLES[kind]


def test_the_program_before_the_newest_step_has_left_its_statements() -> None:
    before = revisions()[-2].revision

    assert before in FROZEN, (
        f"before the step changes any: python migrations/freeze.py statements {before}"
    )
    assert FROZEN.keys() <= {script.revision for script in revisions()}


@pytest.mark.parametrize("revision", FROZEN)
async def test_every_statement_of_an_earlier_program_runs_on_the_newest_schema(
    database_url: str, revision: str
) -> None:
    async with seeded(database_url) as connection:
        assert await unfit(connection, FROZEN[revision]) == {}


@pytest.mark.parametrize(
    ("step", "hit"),
    [
        # An insert that does not know of it leaves it out.
        ("alter table haulage.nodes add column zone text not null", "register_node"),
        ("alter table haulage.jobs rename column run_at to due_at", "claim_pending_jobs"),
        ("alter table haulage.job_events drop column stage", "report_progress"),
        ("alter table haulage.jobs add check (status <> 'completed')", "finish_job"),
        ("alter table haulage.nodes alter column lease_seconds type text", "renew_node"),
    ],
)
async def test_a_step_that_breaks_earlier_programs_is_noticed(
    database_url: str, step: str, hit: str
) -> None:
    async with connected(database_url) as connection:
        # Views would keep some of these from being done.
        await connection.execute(f"drop schema reporting cascade; {step}")
        if "zone" not in step:
            await connection.execute(SEED)
        assert hit in await unfit(connection, FROZEN[revisions()[-2].revision])
