import random

import pytest

from app.pipelines.thematic.assigned import Assigned
from app.pipelines.thematic.joining import joined
from app.pipelines.thematic.parts import LONG, MAX_PARTS, PART, TAIL, Span, cut

SENTENCE = "Parking was full again today. "


@pytest.mark.parametrize("text", ["", "short", "x" * LONG])
def test_a_short_answer_is_one_part(text: str) -> None:
    assert cut(text) == [(0, len(text))]


def test_parts_end_with_sentences() -> None:
    text = SENTENCE * 40
    parts = [text[start:end] for start, end in cut(text)]
    assert "".join(parts) == text
    assert all(part.endswith("today. ") for part in parts)
    assert all(PART // 2 <= len(part) <= PART + TAIL for part in parts)


@pytest.mark.parametrize("stop", ["\u3002", "\uff01", "! ", '?" ', "\n"])
def test_sentences_end_in_many_ways(stop: str) -> None:
    text = ("word" * 12 + stop) * 20
    assert all(text[start:end].endswith(stop) for start, end in cut(text))


def test_a_text_without_sentences_is_cut_between_words_or_anywhere() -> None:
    words = "word " * 300
    assert all(words[:end].endswith(" ") for _, end in cut(words))
    assert cut("x" * 900) == [(0, PART), (PART, 2 * PART), (2 * PART, 900)]


def test_a_cut_leaves_slices_whole() -> None:
    text = "word " * 300
    whole = [(380, 460)]
    assert cut(text, whole)[0] == (0, 460)


def test_white_space_makes_no_answer_long_and_no_part_short() -> None:
    padded = "Parking was bad." + "\n" * 1_500 + "Thanks to the nurse."
    assert cut(padded) == [(0, len(padded))]
    spaced = "".join(f"{SENTENCE}{' ' * 300}\r\n" for _ in range(40))
    parts = [" ".join(spaced[start:end].split()) for start, end in cut(spaced)]
    assert " ".join(parts) == " ".join(spaced.split())
    assert all(PART // 2 <= len(part) <= PART + TAIL for part in parts)


def test_any_answer_is_covered_without_gaps_by_a_bounded_number_of_parts() -> None:
    draw = random.Random(3)  # noqa: S311 - a repeatable variety of texts
    for _ in range(60):
        text = "".join(draw.choices("ab .!?\n\u3002", k=draw.randint(0, 60_000)))
        parts = cut(text)
        assert [start for start, _ in parts] == [0, *(end for _, end in parts[:-1])]
        assert parts[-1][1] == len(text)
        assert len(parts) <= MAX_PARTS


def assigned(*themes: int, stance: list[str] | None = None, status: str = "") -> Assigned:
    state = status or ("assigned" if themes else "other")
    return Assigned(state, list(themes), 0.5 if themes else None, "llm", None, stance or [])


def sizes(*sizes: int) -> list[str]:
    """A text of each size."""
    return ["x" * size for size in sizes]


def test_a_short_answer_is_where_its_text_is() -> None:
    of = [assigned(3), assigned(1)]
    assert joined([Span(1, 0, 9)], of, sizes(9, 9)) == (of[1], 1)


def test_the_primary_theme_of_a_long_answer_is_what_most_of_it_speaks_of() -> None:
    of = [assigned(1), assigned(2, 5), assigned()]
    whole, home = joined(
        [Span(0, 0, 300), Span(1, 300, 700), Span(2, 700, 1200)], of, sizes(300, 400, 500)
    )
    assert (whole.status, whole.themes, home) == ("assigned", [2, 5, 1], 1)


def test_blanks_weigh_nothing() -> None:
    of = [assigned(1), assigned(2)]
    whole, home = joined([Span(0, 0, 900), Span(1, 900, 1200)], of, sizes(20, 300))
    assert (whole.themes, home) == ([2, 1], 1)


def test_opposite_stances_to_one_theme_are_a_mixed_one() -> None:
    of = [assigned(1, stance=["positive"]), assigned(1, 2, stance=["negative", "neutral"])]
    whole, _ = joined([Span(0, 0, 400), Span(1, 400, 700)], of, sizes(400, 300))
    assert dict(zip(whole.themes, whole.stance, strict=True)) == {1: "mixed", 2: "neutral"}


@pytest.mark.parametrize(
    ("told", "stance"),
    [
        (["positive", "neutral"], "positive"),
        (["neutral", "negative"], "negative"),
        (["neutral", "neutral"], "neutral"),
        (["neutral", "mixed"], "mixed"),
        (["positive", "neutral", "negative"], "mixed"),
        (["", "neutral"], "neutral"),
        (["", ""], ""),
    ],
)
def test_a_neutral_part_takes_nothing_from_the_stance_of_another(
    told: list[str], stance: str
) -> None:
    of = [assigned(1, stance=[each]) for each in told]
    spans = [Span(at, 9 * at, 9 * at + 9) for at in range(len(told))]
    whole, _ = joined(spans, of, ["something"] * len(told))
    assert whole.stance == [stance]


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["other", "failed"], "failed"),
        (["non_answer", "other"], "other"),
        (["non_answer", "non_answer"], "non_answer"),
    ],
)
def test_an_answer_without_themes_is_what_its_parts_are(statuses: list[str], expected: str) -> None:
    of = [assigned(status=status) for status in statuses]
    whole, _ = joined([Span(0, 0, 400), Span(1, 400, 700)], of, sizes(400, 300))
    assert whole.status == expected


def test_a_part_that_failed_does_not_hide_the_theme_of_another() -> None:
    of = [assigned(status="failed"), assigned(4)]
    whole, home = joined([Span(0, 0, 400), Span(1, 400, 700)], of, sizes(400, 300))
    assert (whole.status, whole.themes, whole.reason, home) == ("assigned", [4], None, 1)
