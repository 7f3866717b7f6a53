"""From rows to a result: datasets, several questions, long answers, masked words, languages."""

import asyncio
from typing import Any

from thematic.recording import RecordingContext
from thematic.surveys import analyse, problems, topics

from app.pipelines.thematic.parts import LONG
from app.pipelines.thematic.pipeline import ThematicAnalysis

LSA = {"embedding": {"backend": "lsa"}}
STORED = "0192d3a4-0000-7000-8000-000000000001"


def test_a_dataset_gives_the_result_of_its_rows_and_names_itself() -> None:
    rows = topics(10)
    context = RecordingContext(datasets={STORED: rows})
    payload = {"dataset": {"id": STORED}, "id_column": "id", "group_by": ["topic"], **LSA}
    stored = asyncio.run(ThematicAnalysis().run(payload, context))
    inline = analyse({"answers": rows, "id_column": "id", "group_by": ["topic"], **LSA})
    assert stored["input"]["dataset"] == STORED
    assert inline["input"]["dataset"] is None
    for same in ("themes", "assignments", "insights", "metrics"):
        assert stored[same] == inline[same]


def test_each_question_is_accounted_for() -> None:
    rows = [{"id": row["id"], "liked": row["text"], "improve": "Nothing"} for row in topics(10)]
    result = analyse(
        {
            "answers": rows,
            "id_column": "id",
            "question": {"liked": "What did you like?", "improve": "What could be better?"},
            **LSA,
        }
    )
    assert result["question"] is None
    told = {asked["column"]: asked for asked in result["input"]["questions"]}
    assert told["liked"]["rows"] == told["improve"]["rows"] == 30
    assert told["improve"]["non_answers"] == 0
    assert told["improve"]["nothing_is_an_answer"]
    answers = {f"{row['id']}/{name}": row[name] for row in rows for name in ("liked", "improve")}
    assert problems(result, answers) == []


def test_a_long_answer_has_the_themes_of_its_parts_and_is_counted_once() -> None:
    rows = [row["text"] for row in topics(20)]
    both = " ".join(["The parking was full and costs too much."] * 12) + " "
    both += " ".join(["The nurse was kind and listened to me."] * 20)
    assert len(both) > LONG
    result = analyse({"answers": [*rows, both], "max_themes": 3, **LSA})
    assert (result["input"]["split"], result["input"]["analysed"]) == (1, 61)
    answers = {str(at): text for at, text in enumerate([*rows, both], start=1)}
    assert problems(result, answers) == []
    last = result["assignments"][-1]
    about = {theme["id"]: " ".join(theme["keywords"]) for theme in result["themes"]}
    assert "nurse" in about[last["theme_ids"][0]]
    assert any("parking" in about[theme] for theme in last["theme_ids"][1:])


def test_masked_words_are_nowhere_in_the_result() -> None:
    rows: list[dict[str, Any]] = topics(20)
    for row in rows[::3]:
        row["text"] += " says Foster"
    result = analyse({"answers": rows, "redact": {"custom": ["foster"]}, **LSA})
    assert result["input"]["masked_custom"] == 20
    assert "foster" not in str(result).casefold()


def test_a_mix_of_languages_is_counted_and_told() -> None:
    german = [f"Das Essen war kalt und die Wartezeit war zu lang ({n})" for n in range(20)]
    english = [f"The food was cold and the waiting time was too long ({n})" for n in range(20)]
    result = analyse({"answers": [*german, *english, "ok"], **LSA})
    assert result["input"]["languages"] == {"de": 20, "en": 20, "und": 1}
    assert "not_english" in [warning["code"] for warning in result["warnings"]]
