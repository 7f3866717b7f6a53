"""What counts as an analysis: results of other pipelines end nobody's report, and show in none."""

import asyncio
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from reporting.kept import VIEWS, keep
from reporting.rows import Session
from support.analysis import analysis

from app.db import migrate
from app.db.urls import DatabaseURL

# What views give as a number or as yes or no.
SCALARS = (
    *(f"input.{key}" for key in ("rows", "non_answers", "analysed", "unique_texts", "duplicates")),
    *(f"metrics.{key}" for key in ("coverage", "stability", "separation", "redundancy")),
    *(f"{part}.{key}" for part in ("other", "failed") for key in ("responses", "share")),
    "created_by.seed",
    "labelling.degraded",
    *(f"usage.{key}" for key in ("llm_calls", "cached_calls", "prompt_tokens")),
    *("usage.completion_tokens", "usage.cost"),
    *(f"themes.0.{key}" for key in ("responses", "share", "unique_texts", "cohesion")),
    *("themes.0.separation", "themes.0.stance.mixed"),
    *(f"themes.0.quotes.0.{key}" for key in ("start", "end", "verified")),
    *(f"themes.0.by_group.ward.A.{key}" for key in ("responses", "share")),
    "insights.0.numbers_checked",
    "assignments.0.score",
)


def changed(path: str, value: Any) -> dict[str, Any]:
    """An analysis with something else at one place."""
    result = analysis()
    for theme in result["themes"]:
        theme["by_group"] = {"ward": {"A": {"responses": 1, "share": 0.5}}}
    *way, last = (int(key) if key.isdecimal() else key for key in path.split("."))
    part: Any = result
    for key in way:
        part = part[key]
    assert last in range(len(part)) if isinstance(part, list) else last in part, path
    part[last] = value
    return result


@pytest.mark.parametrize("view", VIEWS)
async def test_results_of_other_pipelines_are_passed_over(session: Session, view: str) -> None:
    job_id = await keep(session, analysis())
    whole = analysis()
    theme = whole["themes"][0]
    for other in (
        None,
        7,
        "themes/1",
        ["schema", "themes/1"],
        {},
        {"schema": "orders/1", "themes": 3},
        {"schema": ["themes/1"]},
        {"schema": "themes/1"},
        {**whole, "schema": "themes/2"},
        {**whole, "themes": "none"},
        {**whole, "themes": [7]},
        {**whole, "themes": [{"id": "T01"}]},
        *(
            {**whole, "themes": [{**theme, key: "x"}]}
            for key in ("responses", "keywords", "quotes")
        ),
        {**whole, "themes": [{**theme, "by_group": {"ward": 3}}]},
        {**whole, "themes": [{**theme, "merged_from": None}]},
        {**whole, "assignments": {}},
        {**whole, "assignments": ["1"]},
        {**whole, "insights": None},
        {**whole, "insights": [{"theme_ids": [], "evidence": ["1"]}]},
        {**whole, "input": 3},
        {**whole, "input": {"questions": None, "languages": {}}},
        {**whole, "warnings": "none"},
        {**whole, "labelling": {"reasons": None}},
        *(changed(path, "x") for path in SCALARS),
        changed("input.languages", {"de": "x"}),
        changed("input.questions", ["x"]),
        changed("warnings", ["x"]),
        changed("themes.0.id", None),
        changed("assignments.0.theme_ids", [["T01"]]),
    ):
        await keep(session, other, pipeline="others")

    found = await session.fetch(f"table reporting.{view}")

    assert {str(row["job_id"]) for row in found} == {job_id}


@pytest.mark.parametrize("status", ["pending", "running", "failed", "cancelled"])
async def test_what_an_earlier_life_of_a_job_left_is_no_analysis(
    session: Session, status: str
) -> None:
    await keep(session, analysis(), status=status)

    for view in VIEWS:
        assert await session.fetch(f"select from reporting.{view}") == []


async def test_what_is_an_analysis_is_asked_of_no_function_of_the_readers_own(
    session: Session,
) -> None:
    await session.execute(
        "create schema theirs;"
        "create function theirs.jsonb_path_exists(result jsonb, path jsonpath) returns boolean"
        " language plpgsql as $$ begin raise 'seen: %', result; end $$;"
        "set search_path = theirs, pg_catalog"
    )

    assert await session.fetchval("select haulage.is_analysis('{}')") is False


async def test_readers_need_no_grant_of_functions_where_nobody_has_it_by_default(
    empty_database_url: str,
) -> None:
    connection = await asyncpg.connect(empty_database_url)
    role = f"reader_{uuid4().hex}"
    try:
        await connection.execute("alter default privileges revoke execute on functions from public")
        await asyncio.to_thread(migrate.upgrade, DatabaseURL.parse(empty_database_url))
        await keep(connection, analysis())
        await connection.execute(
            f"create role {role}; grant usage on schema reporting to {role};"
            f"grant select on all tables in schema reporting to {role}; set role {role};"
            # A plan by the index of analyses asks the function nothing.
            "set enable_indexscan = off; set enable_indexonlyscan = off;"
            "set enable_bitmapscan = off"
        )
        for view in VIEWS:
            assert await connection.fetch(f"select from reporting.{view}"), view
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch("select haulage.enqueue('{}')")
    finally:
        await connection.execute(f"reset role; drop owned by {role}; drop role {role}")
        await connection.close()
