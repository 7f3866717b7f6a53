"""Followers are answered from indexes, however many jobs and events there are."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from app.db.postgres.statements import STATEMENTS

FOLLOWED = 20
FILL = """
insert into haulage.jobs (id, pipeline)
select gen_random_uuid(), 'p' from generate_series(1, 5000);
insert into haulage.job_attempts (job_id, claim_no, attempt, node_id)
select id, n, n, id from haulage.jobs, generate_series(1, 2) n;
insert into haulage.job_events (job_id, claim_no, attempt, kind, stage)
select id, 1, 1, 'milestone', 's' from haulage.jobs, generate_series(1, 5) n;
insert into haulage.job_logs (job_id, claim_no, attempt, at, level, source, line)
select id, 1, 1, now(), 20, 's', 'l' from haulage.jobs, generate_series(1, 5) n;
analyze haulage.jobs, haulage.job_attempts, haulage.job_events, haulage.job_logs
"""


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


async def test_no_table_is_read_from_end_to_end_for_followers(
    database_url: str, subtests: pytest.Subtests
) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(FILL)
        found = await connection.fetch("select id from haulage.jobs limit $1", FOLLOWED)
        ids: list[UUID] = [row["id"] for row in found]
        places = [0] * FOLLOWED
        asked: dict[str, tuple[Any, ...]] = {
            "list_news": (ids, places, [None] * FOLLOWED, 8),
            "list_lines": (ids, places, [30] * FOLLOWED, 8, 2_000),
            "find_log_tail": (ids[0], 100, 0),
            "get_job": (ids[0],),
        }
        for name, arguments in asked.items():
            explained = await connection.fetchval(
                f"explain (format json) {STATEMENTS[name].sql}", *arguments
            )
            with subtests.test(name):
                [plan] = json.loads(explained)
                read = [node for node in nodes(plan["Plan"]) if "Relation Name" in node]
                assert read
                whole = [n["Relation Name"] for n in read if n["Node Type"] == "Seq Scan"]
                assert whole == []
    finally:
        await connection.close()
