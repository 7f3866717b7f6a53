import pytest

from app.domain.errors import DatasetError
from app.pipelines.thematic.load import Answers
from app.pipelines.thematic.parameters import Redact
from app.pipelines.thematic.prepare import (
    Prepared,
    clean,
    holds_personal_data,
    mask,
    people,
    prepare,
)
from app.pipelines.thematic.words import phrases, stem, tokens


def prepared(*texts: str, question: str | None = None) -> Prepared:
    ids = [str(number) for number in range(len(texts))]
    return prepare(Answers(ids=ids, texts=list(texts), groups={}), question, Redact())


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("  a \t b\r\nc ", "a b c"),
        ("tea &amp; cake", "tea & cake"),
        ("a\u00a0b", "a b"),
        ("zero\u200bwidth", "zerowidth"),
        ("cafe\u0301", "caf\u00e9"),
        ("lone \ud800 half", "lone half"),
    ],
)
def test_texts_are_cleaned(raw: str, expected: str) -> None:
    assert clean(raw) == expected


@pytest.mark.parametrize(
    ("raw", "expected", "kinds"),
    [
        ("write to jo.bloggs@example.org.", "write to [email].", ["emails"]),
        ("ring 07700 900123 please", "ring [phone] please", ["phones"]),
        ("ring +44 (0)20 7946 0018", "ring [phone]", ["phones"]),
        ("on 12/03/2026 at 10.30", "on 12/03/2026 at 10.30", []),
        ("called 999, waited 45 minutes", "called 999, waited 45 minutes", []),
    ],
)
def test_personal_data_are_masked(raw: str, expected: str, kinds: list[str]) -> None:
    assert mask(raw, Redact()) == (expected, kinds)
    assert holds_personal_data(raw) == bool(kinds)


def test_masking_can_be_switched_off_by_kind() -> None:
    text = "jo@example.org or 07700 900123"
    assert mask(text, Redact(emails=False)) == ("jo@example.org or [phone]", ["phones"])
    assert mask(text, Redact(phones=False)) == ("[email] or 07700 900123", ["emails"])


def test_non_answers_are_counted_by_wording() -> None:
    found = prepared(
        "N/A", "n/a.", "", "  ", "-", "Don\u2019t know", "dont know", "Nothing!", "Good"
    )
    assert found.texts == ["Good"]
    assert found.non_answers == {"": 3, "dont know": 2, "na": 2, "nothing": 1}
    assert found.empty == 2
    assert found.text_of == [-1] * 8 + [0]


def test_nothing_is_an_answer_where_the_question_asks_what_could_be_better() -> None:
    found = prepared("Nothing", "No", "n/a", question="How could we improve?")
    assert found.texts == ["Nothing", "No"]
    assert found.non_answers == {"na": 1}
    assert "analysed as an answer" in found.rule


def test_nothing_is_no_answer_under_another_question() -> None:
    found = prepared("Nothing", "Food", question="What did you like?")
    assert found.non_answers == {"nothing": 1}
    assert "set apart" in found.rule


def test_a_word_within_an_answer_makes_no_non_answer() -> None:
    assert prepared("Nothing but praise", "No parking").non_answers == {}


def test_doubles_are_clustered_once_and_counted_as_people() -> None:
    found = prepared("Great staff", "great  STAFF", "Parking", "Great staff")
    assert found.texts == ["Great staff", "Parking"]
    assert found.text_of == [0, 0, 1, 0]
    assert people(found) == [3, 1]


@pytest.mark.parametrize("texts", [(), ("", "n/a")])
def test_nothing_to_analyse_is_an_error(texts: tuple[str, ...]) -> None:
    with pytest.raises(DatasetError, match="nothing to analyse"):
        prepared(*texts)


def test_answers_with_personal_data_are_remembered_even_when_masking_is_off() -> None:
    answers = Answers(ids=["a", "b"], texts=["mail jo@example.org", "fine by me"], groups={})
    found = prepare(answers, None, Redact(emails=False, phones=False))
    assert found.personal == [0]
    assert found.masked_emails == 0


def test_a_foreign_survey_is_noticed() -> None:
    german = "Die Schwestern waren sehr freundlich und geduldig"
    english = "The nurses were very friendly and patient with us"
    assert prepared(german, german + " heute").foreign_share == 1.0
    assert prepared(english, english + " today").foreign_share == 0.0


def test_phrases_have_no_stop_words_and_span_no_punctuation() -> None:
    found = list(phrases("The waiting time was long. Parking [email] fees, didn't pick up 2 bags"))
    assert ("waiting", "time") in found
    assert ("pick", "up") in found
    assert ("long", "parking") not in found
    assert ("parking", "fees") not in found
    assert not any(
        word in ("the", "was", "didn't", "2", "email") for term in found for word in term
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [("arrived", "arriving"), ("waits", "waiting"), ("quick", "quickly"), ("families", "family")],
)
def test_forms_of_a_word_share_a_stem(first: str, second: str) -> None:
    assert stem(first) == stem(second)


@pytest.mark.parametrize(("first", "second"), [("car", "care"), ("car", "caring"), ("bus", "busy")])
def test_other_words_do_not(first: str, second: str) -> None:
    assert stem(first) != stem(second)


def test_apostrophes_are_straightened() -> None:
    assert tokens("Don\u2019t") == ["don't"]
