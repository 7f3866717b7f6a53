import pytest
from thematic.surveys import analyse, topics

from app.pipelines.thematic.quotes import LONGEST, excerpt

LONG = "The first sentence is here. " + "Another one follows it closely. " * 12


@pytest.mark.parametrize(
    ("original", "expected"),
    [
        ("  short answer \n", "short answer"),
        ("", ""),
        ("x" * LONGEST, "x" * LONGEST),
        ("y" * 400, "y" * LONGEST),
    ],
)
def test_a_short_answer_is_quoted_whole(original: str, expected: str) -> None:
    start, end = excerpt(original)
    assert original[start:end] == expected


def test_a_long_answer_is_quoted_by_whole_sentences() -> None:
    original = "  " + LONG
    start, end = excerpt(original)
    quoted = original[start:end]
    assert quoted.startswith("The first sentence")
    assert quoted.endswith("closely.")
    assert LONGEST - 40 < len(quoted) <= LONGEST


def test_a_long_sentence_is_cut_between_words() -> None:
    original = "word " * 100
    start, end = excerpt(original)
    assert original[start:end].endswith("word")
    assert end - start <= LONGEST


@pytest.mark.timeout(10)
def test_a_very_long_answer_is_cut_as_fast_as_another() -> None:
    assert excerpt("a" + " " * 100_000 + "b.") == (0, LONGEST - 1)


def test_no_quote_shows_personal_data() -> None:
    rows = topics(20)
    for number, row in enumerate(rows):
        if number % 2:
            row["text"] += " ring 07700 900123" if number % 3 else " mail jo@example.org"
    for redact in ({}, {"emails": False, "phones": False}):
        result = analyse({"answers": rows, "redact": redact, "embedding": {"backend": "lsa"}})
        quotes = [quote for theme in result["themes"] for quote in theme["quotes"]]
        assert quotes
        assert not any("07700" in quote["text"] or "@" in quote["text"] for quote in quotes)
        assert not any("07700" in theme["name"] for theme in result["themes"])


def test_a_theme_is_quoted_across_groups() -> None:
    rows = [{**row, "ward": str(number % 3)} for number, row in enumerate(topics(20))]
    result = analyse({"answers": rows, "group_by": ["ward"], "quotes_per_theme": 3})
    ward = {str(number): row["ward"] for number, row in enumerate(rows, start=1)}
    for theme in result["themes"]:
        if theme["parent"] is None and len(theme["quotes"]) == 3:
            assert len({ward[quote["response_id"]] for quote in theme["quotes"]}) >= 2


def test_quotes_can_be_left_out() -> None:
    result = analyse({"answers": topics(8), "quotes_per_theme": 0})
    assert not any(theme["quotes"] for theme in result["themes"])


def test_white_space_and_entities_are_quoted_as_they_were_given() -> None:
    texts = [f"  Tea &amp;\u00a0cake\tnumber {number} was lovely\n" for number in range(8)]
    quotes = analyse({"answers": texts})["themes"][0]["quotes"]
    assert all(quote["text"].startswith("Tea &amp;\u00a0cake\t") for quote in quotes)
    assert all(quote["start"] == 2 for quote in quotes)
