"""The pages about reporting say what a migrated database says, and the dashboard's queries run."""

import json
import re
import uuid
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import asyncpg
import pytest

from app.pipelines.thematic.pipeline import VERSION
from docs import worked_queries
from docs.demo.data import kept
from docs.render import ROOT, rendered
from docs.reporting import PAGE, dictionary

DASHBOARD = json.loads((ROOT / "docs" / "grafana" / "haulage.json").read_text("utf-8"))
SOURCE = "datasource"
TIME_FILTER = re.compile(r"\$__timeFilter\((\w+)\)")
# A relation in a query; what has no schema is a column's alias or a query in brackets.
RELATION = re.compile(r"\b(?:from|join)\s+([a-z_]+\.[a-z_]+|[a-z_]+\b(?!\s*\())", re.IGNORECASE)


@pytest.fixture
async def demo(
    database_url: str,
) -> AsyncGenerator["asyncpg.Connection[asyncpg.Record]", None]:
    """A session of a database with the demo's data."""
    async with worked_queries.filled(database_url) as connection:
        yield connection


async def test_the_dictionary_is_what_the_database_says(database_url: str) -> None:
    made = await dictionary(database_url)
    text = PAGE.read_text("utf-8")

    assert rendered(text, {"dictionary": lambda: made}) == text, "run `python docs/reporting.py`"


@pytest.mark.parametrize(
    ("change", "silent"),
    [
        ("comment on view reporting.themes is null", "themes"),
        ("comment on column reporting.jobs.queue is null", "jobs.queue"),
        (
            "create view reporting.new as select 1 as one; comment on view reporting.new is 'x'",
            "new.one",
        ),
    ],
)
async def test_what_has_no_comment_is_named(database_url: str, change: str, silent: str) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute(change)
    await connection.close()

    with pytest.raises(ValueError, match=f"no comment on {re.escape(silent)}$"):
        await dictionary(database_url)


async def test_the_worked_queries_print_what_the_page_says(
    demo: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    text = worked_queries.PAGE.read_text("utf-8")

    assert await worked_queries.rendered(text, demo) == text, "run `python docs/worked_queries.py`"


def test_there_are_twenty_worked_queries_over_reporting_alone() -> None:
    queries = worked_queries.queries(worked_queries.PAGE.read_text("utf-8"))

    assert len(queries) == 20
    for query in queries:
        assert set(relations(query)) == {"reporting"}, query


async def test_a_query_that_answers_nothing_shows_nothing(
    demo: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    with pytest.raises(ValueError, match="nothing is answered to: select 1 where false"):
        await worked_queries.answer(demo, "select 1 where false")


async def test_whoever_may_read_the_views_alone_can_ask_all_of_it(
    demo: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    queries = worked_queries.queries(worked_queries.PAGE.read_text("utf-8"))
    queries += [filled_in(target["rawSql"], "") for _, target in targets()]
    role = f"reader_{uuid.uuid4().hex}"
    await demo.execute(
        f"create role {role}; grant usage on schema reporting to {role};"
        f"grant select on all tables in schema reporting to {role}; set role {role}"
    )
    try:
        for query in queries:
            await demo.fetch(query)
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await demo.fetch("table haulage.job_results")
    finally:
        await demo.execute(f"reset role; drop owned by {role}; drop role {role}")


def test_the_kept_analyses_are_of_the_present_recipe() -> None:
    versions = {result["created_by"]["version"] for result in kept()}

    assert versions == {VERSION}, "run `python docs/demo/data.py` and `docs/worked_queries.py`"


async def test_every_query_of_the_dashboard_answers(
    demo: "asyncpg.Connection[asyncpg.Record]", subtests: pytest.Subtests
) -> None:
    [choice] = [each for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    analysis, *_ = await demo.fetch(choice["query"])

    for title, target in targets():
        with subtests.test(title):
            query = filled_in(target["rawSql"], analysis["__value"])
            names = [each.name for each in (await demo.prepare(query)).get_attributes()]
            rows = await demo.fetch(query)
            assert rows
            assert len(set(names)) == len(names)
            if target["format"] == "time_series":
                assert names[0] == "time"
                assert all(row["time"].tzinfo is not None for row in rows)


async def test_the_dashboard_is_quiet_before_the_first_job(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        for _, target in targets():
            await connection.fetch(filled_in(target["rawSql"], analysis=""))
    finally:
        await connection.close()


def test_the_dashboard_names_reporting_alone() -> None:
    queries = [target["rawSql"] for _, target in targets()]
    queries += [each["query"] for each in DASHBOARD["templating"]["list"] if each["name"] != SOURCE]

    for query in queries:
        assert set(relations(query)) == {"reporting"}, query


def test_the_dashboard_takes_its_data_source_from_a_variable() -> None:
    sources = [panel["datasource"] for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    sources += [target["datasource"] for _, target in targets()]

    assert {source["uid"] for source in sources} == {"${" + SOURCE + "}"}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def targets() -> Iterator[tuple[str, dict[str, Any]]]:
    """The queries of the panels by the panels' titles."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target


def relations(query: str) -> Iterator[str]:
    """The schema of each relation that a query names, or its name where that says none."""
    for name in RELATION.findall(query):
        schema, _, _ = name.partition(".")
        yield schema
    if "haulage." in query:
        yield "haulage"


def filled_in(query: str, analysis: str) -> str:
    """A query as Grafana sends it, over all that there is."""
    query = TIME_FILTER.sub(r"\1 between '2000-01-01T00:00:00Z' and '2099-01-01T00:00:00Z'", query)
    query = query.replace("$__timeFrom()", "'2000-01-01T00:00:00Z'")
    return query.replace("$analysis", analysis)
