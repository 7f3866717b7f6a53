"""What analysts read: every view about analyses says what the stored result says."""

from collections import Counter
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from reporting.kept import BEGAN, VIEWS, keep
from reporting.rows import Session
from support.analysis import HOSTILE, NAME, analysis
from support.service import running
from support.sql import rows
from thematic.surveys import nhs_rows

ANSWERS = 300


async def seen(session: Session, view: str, job_id: str) -> list[dict[str, Any]]:
    """What a view has of one analysis, in the order of the result."""
    found = await session.fetch(f"table reporting.{view}")
    return [dict(row) for row in found if str(row["job_id"]) == job_id]


def with_edges() -> dict[str, Any]:
    """Stances, a sub-theme, a code without answers and groups that are months."""
    result = analysis()
    result["labelling"]["reasons"] = ["no LLM configured", "a codebook was given"]
    empty = {
        **result["themes"][-1],
        "id": "T03",
        "name": "Nobody; \"says\", 'this'",
        "name_source": "codebook",
        "keywords": [],
        "responses": 0,
        "share": 0.0,
        "unique_texts": 0,
        "cohesion": None,
        "separation": None,
        "merged_from": ["Parking", "Car park"],
        "by_group": {"month": {}},
    }
    result["themes"].append(empty)
    result["insights"].append({**result["insights"][0], "theme_ids": [], "evidence": []})
    return result


@pytest.mark.system
@pytest.mark.timeout(180)
def test_every_view_says_what_the_pipeline_found(database_url: str, tmp_path: Path) -> None:
    payload = {"answers": nhs_rows(ANSWERS), "id_column": "id", "group_by": ["service", "rating"]}
    with running("serve", database_url, tmp_path / "log") as service:
        job_id = service.enqueue(payload, "thematic")
        assert service.wait_for_end(job_id, 120)["status"] == "completed"
        result = service.result(job_id)

    def look(query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in rows(database_url, query)]

    for view in VIEWS:
        assert rows(database_url, f"table reporting.{view}"), view
    themes = {theme["id"]: theme for theme in result["themes"]}
    top = {key: theme["responses"] for key, theme in themes.items() if theme["parent"] is None}
    assert look("select theme_id, responses, share from reporting.themes order by position") == [
        (key, theme["responses"], Decimal(str(theme["share"]))) for key, theme in themes.items()
    ]
    assert dict(look("select theme_id, count(*) from reporting.response_themes group by 1")) == top
    assert dict(
        look(
            "select subtheme_id, count(*) from reporting.responses"
            " where subtheme_id is not null group by 1"
        )
    ) == {key: theme["responses"] for key, theme in themes.items() if theme["parent"] is not None}
    for column in payload["group_by"]:
        assert dict(
            look(
                "select theme_id, sum(responses) from reporting.theme_by_segment"  # noqa: S608  ours
                f" where group_column = '{column}' group by 1"
            )
        ) == {key: theme["responses"] for key, theme in themes.items()}
    assert Counter(dict(look("select status, count(*) from reporting.responses group by 1"))) == (
        Counter(entry["status"] for entry in result["assignments"])
    )
    assert look(
        "select rows, analysed, non_answers, other_responses, themes, subthemes,"
        " labelling_method, model, degraded, llm_calls, text_columns from reporting.analyses"
    ) == [
        (
            ANSWERS,
            result["input"]["analysed"],
            result["input"]["non_answers"],
            result["other"]["responses"],
            len(top),
            len(themes) - len(top),
            "keywords",
            None,
            True,
            0,
            "text",
        )
    ]
    assert look(
        "select theme_id, quote from reporting.theme_quotes order by theme_id, position"
    ) == [
        (key, quote["text"]) for key, theme in sorted(themes.items()) for quote in theme["quotes"]
    ]
    assert look("select insight from reporting.insights order by position") == [
        (insight["text"],) for insight in result["insights"]
    ]


async def test_themes_have_their_words_stances_and_place(session: Session) -> None:
    job_id = await keep(session, with_edges())

    first, sub, second, empty = await seen(session, "themes", job_id)

    assert [row["position"] for row in (first, sub, second, empty)] == [1, 2, 3, 4]
    assert (first["name"], first["keywords"]) == (NAME, "wait, <long>")
    assert (first["positive"], first["negative"]) == (0, 1)
    assert (sub["theme_id"], sub["parent_id"], sub["negative"]) == ("T01.1", "T01", None)
    assert second["share"] == Decimal(str(round(2 / 7, 4)))
    assert (empty["responses"], empty["cohesion"], empty["keywords"]) == (0, None, "")
    assert empty["merged_from"] == "Parking, Car park"
    assert first["merged_from"] is None
    assert first["finished_at"] - BEGAN == timedelta(seconds=90)


async def test_an_analysis_is_one_row_with_its_counts(session: Session) -> None:
    result = with_edges()
    job_id = await keep(session, result, pipeline="ours")

    [row] = await seen(session, "analyses", job_id)

    assert (row["pipeline"], row["run_seconds"]) == ("ours", Decimal("90.000"))
    assert (row["rows"], row["analysed"], row["non_answers"]) == (8, 7, 1)
    assert (row["themes"], row["subthemes"]) == (3, 1)
    assert row["coverage"] == Decimal("0.7")
    assert row["languages"] == "de, und"
    assert row["labelling_reasons"] == "no LLM configured; a codebook was given"
    assert row["warnings"] == "Few answers: <look> twice"
    assert (row["model"], row["degraded"], row["stability"]) == ("small<model>", False, None)


async def test_questions_of_several_columns_are_told_in_their_order(
    session: Session,
) -> None:
    result = analysis()
    [asked] = result["input"]["questions"]
    result["question"] = None
    result["input"]["questions"] = [
        {**asked, "column": "worse", "question": "What was bad?"},
        {**asked, "column": "notes", "question": None},
        {**asked, "column": "better", "question": "What was good?"},
    ]
    job_id = await keep(session, result)

    [row] = await seen(session, "analyses", job_id)

    assert row["question"] == "What was bad? | What was good?"
    assert row["text_columns"] == "worse, notes, better"


async def test_each_answer_has_its_first_theme_and_a_row_for_each_theme(
    session: Session,
) -> None:
    job_id = await keep(session, with_edges())

    responses = {row["response_id"]: row for row in await seen(session, "responses", job_id)}
    listed = await seen(session, "response_themes", job_id)

    first = responses["1"]
    assert (first["theme_id"], first["theme"], first["themes"]) == ("T01", NAME, 2)
    assert (first["subtheme"], first["stance"], first["position"]) == ("Long waits", "negative", 1)
    assert [
        (row["theme_id"], row["rank"], row["stance"]) for row in listed if row["response_id"] == "1"
    ] == [("T01", 1, "negative"), ("T02", 2, "mixed")]
    assert Counter(row["theme_id"] for row in listed) == {"T01": 4, "T02": 2}
    assert responses["=1+1"]["score"] == Decimal("-0.25")
    for response_id, status in (("x", "other"), ("y", "failed"), ("z", "non_answer")):
        row = responses[response_id]
        assert (row["status"], row["theme_id"], row["theme"], row["themes"]) == (
            status,
            None,
            None,
            0,
        )
    assert responses["y"]["reason"] == "the answer was cut off"
    assert responses["z"]["method"] is None


async def test_quotes_and_insights_are_word_for_word_in_their_order(
    session: Session,
) -> None:
    job_id = await keep(session, with_edges())

    quotes = await seen(session, "theme_quotes", job_id)
    insights = await seen(session, "insights", job_id)

    assert [(row["theme_id"], row["position"]) for row in quotes] == [
        ("T01", 1),
        ("T01", 2),
        ("T01", 3),
        ("T01.1", 1),
    ]
    assert (quotes[2]["quote"], quotes[2]["end_offset"]) == (HOSTILE, len(HOSTILE))
    assert [(row["theme_ids"], row["evidence"]) for row in insights] == [("T01", "1"), ("", None)]


async def test_groups_that_are_periods_have_a_first_day(session: Session) -> None:
    periods = {
        "2025": date(2025, 1, 1),
        "2025-Q3": date(2025, 7, 1),
        "2026 Q4": date(2026, 10, 1),
        "2026-02": date(2026, 2, 1),
        "2026-02-28": date(2026, 2, 28),
        "2026-13": None,
        "0000": None,
        "12026": None,
        "2026-Q5": None,
        "2026-02-28 and later": None,
        "(none)": None,
        "A&E": None,
    }
    result = analysis()
    for theme in result["themes"]:
        theme["by_group"] = {"when": {group: {"responses": 1, "share": 0.5} for group in periods}}
    job_id = await keep(session, result)

    found = await seen(session, "theme_by_segment", job_id)

    assert {row["group_value"]: row["period_start"] for row in found} == periods
    assert len(found) == len(periods) * len(result["themes"])
    assert {row["overall_share"] for row in found if row["theme_id"] == "T02"} == {
        Decimal(str(round(2 / 7, 4)))
    }


async def test_themes_of_the_same_question_are_compared_with_the_analysis_before(
    session: Session,
) -> None:
    def wave(question: str = "What?", **shares: float) -> dict[str, Any]:
        result = analysis()
        theme = result["themes"][-1]
        result["input"]["questions"][0]["question"] = question
        result["themes"] = [
            {**theme, "id": f"T0{n}", "name": name, "share": share, "responses": int(share * 100)}
            for n, (name, share) in enumerate(shares.items(), start=1)
        ]
        return result

    # Stored in another order than they ended.
    for day, result in (
        (3, wave(food=0.5)),
        (1, wave(food=0.25, waits=0.5)),
        (2, wave("What else?", food=0.75)),
        (4, wave(waits=0.1, food=0.4)),
    ):
        await keep(session, result, finished_at=BEGAN + timedelta(days=day))

    found = await session.fetch(
        "select question, theme, finished_day, analysis_no, share, previous_share, share_change,"
        " responses_change from reporting.theme_trend order by question, theme, finished_at"
    )

    first = BEGAN.date()
    assert [tuple(row) for row in found] == [
        ("What else?", "food", first + timedelta(2), 1, Decimal("0.75"), None, None, None),
        ("What?", "food", first + timedelta(1), 1, Decimal("0.25"), None, None, None),
        (
            *("What?", "food", first + timedelta(3), 2),
            *(Decimal("0.5"), Decimal("0.25"), Decimal("0.25"), 25),
        ),
        (
            *("What?", "food", first + timedelta(4), 3),
            *(Decimal("0.4"), Decimal("0.5"), Decimal("-0.1"), -10),
        ),
        ("What?", "waits", first + timedelta(1), 1, Decimal("0.5"), None, None, None),
        # Not in the analysis before: what it was two analyses ago is no change.
        ("What?", "waits", first + timedelta(4), 3, Decimal("0.1"), None, None, None),
    ]


async def test_an_analysis_without_themes_has_its_place_in_the_trend(session: Session) -> None:
    for day in (1, 2, 3):
        result = analysis()
        if day == 2:
            result["themes"] = []
        await keep(session, result, finished_at=BEGAN + timedelta(days=day))

    found = await session.fetch(
        "select analysis_no, previous_job_id, share_change from reporting.theme_trend"
        " where theme_id = 'T02' order by finished_at"
    )

    assert [tuple(row) for row in found] == [(1, None, None), (3, None, None)]
