import copy
from collections.abc import Callable
from typing import Any

import pytest
from thematic.surveys import analyse, topics

from app.results.themes import ThemesResult, theme_rows, verify

ROWS = topics(20)
ANSWERS = {row["id"]: row["text"] for row in ROWS} | {"silent": "n/a"}


@pytest.fixture(name="sound", scope="module")
def _sound() -> ThemesResult:
    rows = [*ROWS, {"id": "silent", "topic": "food", "text": "n/a"}]
    return analyse(
        {
            "answers": rows,
            "id_column": "id",
            "group_by": ["topic"],
            "max_themes": 3,
            "embedding": {"backend": "lsa"},
        }
    )


def test_a_sound_result_has_no_problem(sound: ThemesResult) -> None:
    assert verify(sound, ANSWERS) == []


def _move(result: Any) -> None:
    entry = next(e for e in result["assignments"] if e["theme_id"] == "T01")
    entry.update(theme_id="T02", subtheme_id=None)


def _invent_theme(result: Any) -> None:
    result["assignments"][0].update(theme_id="T99", subtheme_id=None)


def _quote_freely(result: Any) -> None:
    result["themes"][0]["quotes"][0]["text"] += "!"


def _quote_elsewhere(result: Any) -> None:
    first, second = [theme for theme in result["themes"] if theme["parent"] is None][:2]
    first["quotes"], second["quotes"] = second["quotes"], first["quotes"]


def _quote_blank(result: Any) -> None:
    result["themes"][0]["quotes"][0].update(text="", start=0, end=0)


def _inflate(result: Any) -> None:
    result["themes"][0]["share"] += 0.1


def _lose(result: Any) -> None:
    del result["assignments"][0]


def _double(result: Any) -> None:
    result["assignments"].append(result["assignments"][0])


def _invent_figure(result: Any) -> None:
    result["insights"][0]["text"] += " That is 77 more than before."


def _invent_count(result: Any) -> None:
    insight = result["insights"][0]
    insight["text"] = insight["text"].replace("60 answers", "61 answers")
    insight["numbers"]["analysed"] = 61


def _regroup(result: Any) -> None:
    next(iter(result["themes"][0]["by_group"]["topic"].values()))["responses"] += 1


def _forget_non_answer(result: Any) -> None:
    result["non_answers"]["texts"] = []


def _name_unknown_theme(result: Any) -> None:
    result["insights"][0]["theme_ids"] = ["T42"]


@pytest.mark.parametrize(
    ("falsify", "said"),
    [
        (_move, "are assigned"),
        (_invent_theme, "which is no theme"),
        (_quote_freely, "not verbatim"),
        (_quote_elsewhere, "is assigned elsewhere"),
        (_quote_blank, "is blank"),
        (_inflate, "states a share"),
        (_lose, "is not assigned"),
        (_double, "assigned 2 times"),
        (_invent_figure, "states 77, which was not computed"),
        (_invent_count, "is about 61 answers"),
        (_regroup, "groups of 'topic' add up"),
        (_forget_non_answer, "non-answers add up to 0"),
        (_name_unknown_theme, "which does not exist"),
    ],
)
def test_a_falsified_result_is_found_out(
    sound: ThemesResult, falsify: Callable[[Any], None], said: str
) -> None:
    false = copy.deepcopy(sound)
    falsify(false)
    assert any(said in problem for problem in verify(false, ANSWERS))


def test_an_answer_that_was_not_given_is_found_out(sound: ThemesResult) -> None:
    assert any("was not given" in problem for problem in verify(sound, {}))


def test_the_table_ends_with_other() -> None:
    rows = topics(20)
    lost = [{"id": "x1", "topic": "-", "text": "Zebra quagga okapi"}]
    result = analyse({"answers": rows + lost, "max_themes": 15, "embedding": {"backend": "lsa"}})
    table = theme_rows(result)
    assert sum(row.responses for row in table) == 61
    assert sum(row.share for row in table) == pytest.approx(1.0, abs=0.002)
    assert [row.name for row in table][-1:] == ["Other"] * bool(result["other"]["responses"])
