"""What stands out in the counts: by chance alone next to nothing, and what is there is found."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given as by_chance
from hypothesis import strategies as st

from app.pipelines.thematic.assigned import Assigned
from app.pipelines.thematic.comparing import differences, log_chance, pairs
from app.pipelines.thematic.counting import Tables
from app.pipelines.thematic.insights import insights
from app.pipelines.thematic.label import Labels
from app.pipelines.thematic.load import Answers
from app.pipelines.thematic.quotes import Quotes, Slice

SURVEYS = range(20)


def tables(themes_of: Sequence[list[int]], themes: int, method: str = "llm") -> Tables:
    return Tables(
        of_row=[
            Assigned("assigned" if listed else "other", listed, 0.5, method) for listed in themes_of
        ],
        home=[0] * len(themes_of),
        analysed=len(themes_of),
        responses=[sum(theme in listed for listed in themes_of) for theme in range(themes)],
        others=sum(not listed for listed in themes_of),
        failed=0,
    )


def answers(groups: Sequence[str], columns: int = 1) -> Answers:
    """One group per person, who answers every column."""
    people = range(len(groups))
    return Answers(
        ids=[f"{person}/{column}" for person in people for column in range(columns)],
        texts=["x"] * len(groups) * columns,
        groups={"site": [group for group in groups for _ in range(columns)]},
        columns=[f"q{column}" for column in range(columns)],
        questions=[None] * columns,
        column_of=list(range(columns)) * len(groups),
        source={},
    )


def told(given: Answers, counted: Tables, quoted: Sequence[str] = ()) -> list[str]:
    themes = len(counted.responses)
    labels = Labels(
        names=[f"Theme {chr(65 + theme)}" for theme in range(themes)],
        keywords=[[]] * themes,
        subnames=[],
        subkeywords=[],
        descriptions=[None] * themes,
        sources=["keywords"] * themes,
        subdescriptions=[],
        subsources=[],
    )
    quotes = [Slice(response_id=answer, text="x", start=0, end=1) for answer in quoted]
    chosen = Quotes(themes=[quotes] * themes, subthemes=[], other=[], suggested=[])
    return [sentence["text"] for sentence in insights(given, counted, labels, chosen).insights]


@by_chance(st.integers(1, 40), st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_the_chance_is_that_of_the_hypergeometric_distribution(
    whole: int, size: int, hits: int, here: int
) -> None:
    size, hits = min(size, whole), min(hits, whole)
    here = max(min(here, size, hits), size + hits - whole, 0)
    ways = sum(
        math.comb(hits, each) * math.comb(whole - hits, size - each)
        for each in range(here, min(size, hits) + 1)
    )
    exact = Fraction(ways, math.comb(whole, size))
    if here * whole > size * hits:
        assert math.exp(log_chance(here, size, hits, whole)) == pytest.approx(float(exact))
    else:
        assert log_chance(here, size, hits, whole) == 0.0


def test_a_chance_too_small_for_a_number_still_has_a_logarithm() -> None:
    assert log_chance(20_000, 25_000, 20_000, 50_000) == pytest.approx(
        math.lgamma(30_001) + math.lgamma(25_001) - math.lgamma(5_001) - math.lgamma(50_001)
    )


def test_surveys_without_a_difference_tell_none() -> None:
    groups = [f"g{number // 30}" if number < 300 else "rest" for number in range(5_000)]
    with_any = 0
    for seed in SURVEYS:
        listed = [[0]] * (5_000 - 14 * 8) + [[theme] for theme in range(1, 15) for _ in range(8)]
        random.Random(seed).shuffle(listed)  # noqa: S311 - a draw, not a secret
        with_any += bool(differences(answers(groups), tables(listed, 15)))
    assert with_any <= 1


@pytest.mark.parametrize(("rate", "themes"), [(0.002, 40), (0.01, 20), (0.1, 8)])
def test_themes_that_are_independent_of_each_other_come_together_in_no_sentence(
    rate: float, themes: int
) -> None:
    with_any = 0
    for seed in SURVEYS:
        chance = random.Random(seed)  # noqa: S311
        listed = [
            [0, *(theme for theme in range(1, themes) if chance.random() < rate)]
            for _ in range(2_000)
        ]
        with_any += bool(pairs(answers(["x"] * 2_000), tables(listed, themes)))
    assert with_any <= 1


def test_what_one_person_says_to_several_questions_counts_once() -> None:
    columns = 5
    groups = ["north"] * 40 + ["south"] * 400
    with_any = 0
    for seed in SURVEYS:
        chance = random.Random(seed)  # noqa: S311
        # People who speak of a theme do so under every question.
        of_person = [sorted({0, *chance.choices(range(1, 30), k=2)}) for _ in groups]
        listed = [themes for themes in of_person for _ in range(columns)]
        given, counted = answers(groups, columns), tables(listed, 30)
        with_any += bool(differences(given, counted)) + bool(pairs(given, counted))
    assert with_any <= 1


def test_a_theme_of_one_question_is_no_difference_between_those_who_were_asked_it() -> None:
    groups = ["north"] * 200 + ["south"] * 200
    listed = [[0] if column == 0 else [1] for _ in groups for column in (0, 1)]
    given, counted = answers(groups, 2), tables(listed, 2)
    # The south was not asked the second question.
    silent = [
        None if group == "south" and column == 1 else each
        for group, column, each in zip(
            given.groups["site"], given.column_of, counted.of_row, strict=True
        )
    ]
    counted = replace(counted, of_row=silent, analysed=600, responses=[400, 200])
    assert differences(given, counted) == []


def test_a_real_difference_is_found_among_much_that_is_none_and_comes_first() -> None:
    groups = [f"g{number // 50}" for number in range(1_000)]
    chance = random.Random(0)  # noqa: S311
    listed = [
        [1] if group == "g3" and chance.random() < 0.4 else [chance.choice([0, *range(2, 15)])]
        for group in groups
    ]
    found = differences(answers(groups), tables(listed, 15))
    assert [(each.group, each.theme) for each in found] == [("g3", 1)]
    assert found[0].z > 10


def test_few_answers_are_no_difference_however_unlikely() -> None:
    groups = ["north"] * 30 + ["south"] * 20_000
    few = [[1]] * 4 + [[]] * 20_026
    assert differences(answers(groups), tables(few, 2)) == []
    more = [[1]] * 5 + [[]] * 20_025
    assert [each.theme for each in differences(answers(groups), tables(more, 2))] == [1]


def test_themes_that_come_together_are_found() -> None:
    listed = [[0, 1]] * 30 + [[0]] * 100 + [[2]] * 300 + [[1, 2]] * 5
    [pair] = pairs(answers(["x"] * 435), tables(listed, 3))
    assert (pair.first, pair.second, pair.times) == (0, 1, 30)
    assert pairs(answers(["x"] * 5), tables([[0, 1]] * 5, 2)) == []


@pytest.mark.parametrize("method", ["similarity", "codebook", "cluster"])
def test_themes_by_nearness_are_not_said_to_come_together(method: str) -> None:
    listed = [[0, 1]] * 30 + [[0]] * 100 + [[2]] * 300
    assert not any(
        "together" in text for text in told(answers(["x"] * 430), tables(listed, 3, method))
    )
    assert any("together" in text for text in told(answers(["x"] * 430), tables(listed, 3)))


def test_evidence_of_a_difference_is_of_its_group() -> None:
    groups = ["north"] * 50 + ["south"] * 200
    listed = [[1]] * 30 + [[0]] * 20 + [[1]] * 10 + [[0]] * 190
    given, counted = answers(groups), tables(listed, 2)
    quotes = [
        Slice(response_id=answer, text="x", start=0, end=1) for answer in ("55/0", "12/0", "57/0")
    ]
    chosen = Quotes(themes=[quotes, quotes], subthemes=[], other=[], suggested=[])
    labels = Labels(["A", "B"], [[], []], [], [], [None] * 2, ["keywords"] * 2, [], [])
    [difference] = [
        sentence
        for sentence in insights(given, counted, labels, chosen).insights
        if "“site” is “north”" in sentence["text"] and sentence["theme_ids"] == ["T02"]
    ]
    assert difference["evidence"] == ["12/0", "0/0", "1/0"]


def test_evidence_of_a_pair_speaks_of_both_themes() -> None:
    listed = [[0]] * 100 + [[0, 1]] * 30 + [[2]] * 300
    labels = Labels(["A", "B", "C"], [[]] * 3, [], [], [None] * 3, ["keywords"] * 3, [], [])
    quotes = [Slice(response_id=answer, text="x", start=0, end=1) for answer in ("5/0", "110/0")]
    chosen = Quotes(themes=[quotes] * 3, subthemes=[], other=[], suggested=[])
    told = insights(answers(["x"] * 430), tables(listed, 3), labels, chosen).insights
    [pair] = [sentence for sentence in told if "together" in sentence["numbers"]]
    assert pair["evidence"] == ["110/0", "100/0", "101/0"]


def test_themes_of_one_size_are_not_told_apart() -> None:
    given = answers(["x"] * 20)
    assert told(given, tables([[0]] * 10 + [[1]] * 10, 2))[0].startswith(
        "One of the largest themes is “Theme A”"
    )
    assert told(given, tables([[0]] * 11 + [[1]] * 9, 2))[0].startswith("The largest theme is")
