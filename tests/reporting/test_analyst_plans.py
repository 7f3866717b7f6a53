"""What views about analyses cost: they unpack the results that are asked for, and no other."""

import json
from datetime import timedelta
from typing import Any

import pytest
from postgres.test_claim_plan import nodes
from reporting.kept import BEGAN, VIEWS, keep
from reporting.rows import Session
from support.analysis import analysis


async def test_results_of_other_pipelines_are_not_unpacked_to_be_passed_over(
    session: Session,
) -> None:
    for _ in range(300):
        await keep(session, {"rows": list(range(10))}, pipeline="others")
    await keep(session, analysis())
    await session.execute("analyze haulage.jobs, haulage.job_results")

    for view in VIEWS:
        plan = await planned(session, f"table reporting.{view}")
        of_results = [node for node in nodes(plan) if node.get("Relation Name") == "job_results"]
        assert [node.get("Filter") for node in of_results] == [None], view
        assert "job_results_analyses_idx" in json.dumps(plan), view


@pytest.mark.parametrize("view", [view for view in VIEWS if view != "theme_trend"])
async def test_one_analysis_is_found_by_its_id(session: Session, view: str) -> None:
    await session.execute(
        "insert into haulage.jobs (id, pipeline, status)"
        " select gen_random_uuid(), 'others', 'completed' from generate_series(1, 2000)"
    )
    for _ in range(50):
        await keep(session, analysis())
    job_id = await keep(session, analysis())
    await session.execute("analyze haulage.jobs, haulage.job_results")

    query = f"select * from reporting.{view} where job_id = '{job_id}'"  # noqa: S608  our names
    plan = await planned(session, query, "analyze, ")

    scans = [node for node in nodes(plan) if "Relation Name" in node]
    assert {node["Relation Name"] for node in scans} == {"jobs", "job_results"}
    assert [node["Actual Rows"] for node in scans] == [1, 1]
    assert "Seq Scan" not in {node["Node Type"] for node in scans}


async def test_the_trend_of_one_pipeline_leaves_others_alone(session: Session) -> None:
    for n in range(50):
        await keep(session, analysis(), pipeline=f"p{n % 5}")

    query = "select * from reporting.theme_trend where pipeline = 'p3'"
    plan = await planned(session, query, "analyze, ")

    unpacked = [node for node in nodes(plan) if node.get("Function Name") == "jsonb_to_record"]
    assert [node["Actual Loops"] for node in unpacked] == [10]


async def test_the_latest_analysis_is_found_without_unpacking_the_others(
    session: Session,
) -> None:
    for n in range(50):
        await keep(session, analysis(), finished_at=BEGAN + timedelta(hours=n))
    await session.execute("analyze haulage.jobs, haulage.job_results")

    query = "select job_id from reporting.analyses order by finished_at desc limit 1"
    plan = await planned(session, query, "analyze, ")

    unpacked = [node for node in nodes(plan) if node.get("Function Name") == "jsonb_to_record"]
    assert [node["Actual Loops"] for node in unpacked] == [1]


async def test_statistics_are_made_of_few_results(session: Session) -> None:
    targets = await session.fetch(
        "select attstattarget from pg_attribute"
        " where attrelid = 'haulage.job_results'::regclass and attnum > 0"
    )

    assert {row["attstattarget"] for row in targets} == {1}


async def planned(session: Session, query: str, options: str = "") -> dict[str, Any]:
    found = await session.fetchval(f"explain ({options}format json) {query}")
    plan: dict[str, Any] = json.loads(found)[0]["Plan"]
    return plan
