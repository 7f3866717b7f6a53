import re

import pytest

from app.domain.errors import DatasetError
from app.pipelines.thematic.load import Answers
from app.pipelines.thematic.parameters import Redact
from app.pipelines.thematic.prepare import Mask, Prepared, authors, clean, people, prepare, spans
from app.pipelines.thematic.words import phrases, stem, tokens


def answers(*texts: str, question: str | None = None) -> Answers:
    return Answers(
        ids=[str(number) for number in range(len(texts))],
        texts=list(texts),
        groups={},
        columns=["text"],
        questions=[question],
        column_of=[0] * len(texts),
        source={},
    )


def prepared(*texts: str, question: str | None = None, redact: Redact | None = None) -> Prepared:
    return prepare(answers(*texts, question=question), redact or Redact())


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
        ("07700 900123 07700 900124", "[phone]", ["phones"]),
        ("card 4111 1111 1111 1111", "card [phone]", ["phones"]),
        ("on 12/03/2026 at 10.30", "on 12/03/2026 at 10.30", []),
        ("called 999, waited 45 minutes", "called 999, waited 45 minutes", []),
    ],
)
def test_personal_data_are_masked(raw: str, expected: str, kinds: list[str]) -> None:
    assert Mask(Redact())(raw) == (expected, kinds)
    assert Mask(Redact()).holds_personal_data(raw) == bool(kinds)


@pytest.mark.parametrize(
    "number",
    [
        "030/1234567",
        "0171/123 45 67",
        "+49 (0)171/1234567",
        "+32 475/10.20.30",
        "06/12 34 56 78",
        "01.23.45.67.89",
        "+45 12 34 56 78",
        "(020) 7946-0018",
        "555-123-4567",
        "555\u2013123\u20134567",
        "555\u2011123\u20114567",
        "020\u00a07946\u00a00018",
        "+81-3-1234-5678",
        "\uff10\uff13\uff0d\uff11\uff12\uff13\uff14\uff0d\uff15\uff16\uff17\uff18",
        "07700900123",
        "07700 900123 / 07700 900124",
        "07700 900123 07700 900124 07700 900125 07700 900126",
    ],
)
@pytest.mark.parametrize("around", ["ring {} now", "Tel.{}", "Ph:{}", "room7 {}pls", "it is {}"])
def test_numbers_are_masked_however_they_are_written(around: str, number: str) -> None:
    text, kinds = Mask(Redact())(clean(around.format(number)))
    assert kinds == ["phones"]
    assert re.search(r"\d", text.replace("room7 ", "")) is None
    assert Mask(Redact()).holds_personal_data(around.format(number))


@pytest.mark.parametrize(
    "text",
    [
        "here since 2023-01-01 12:00",
        "from 12/03/2026 - 15/04/2026",
        "from 12/03/26 to 15/04/26",
        "food 10/10 10/10 9/10 4/5",
        "95/100 90/100 80/100",
        "in 2019/20 2020/21 2021/2022",
        "at 10.30, 11.45, 12.15",
    ],
)
def test_dates_and_marks_are_no_numbers_to_ring(text: str) -> None:
    assert Mask(Redact())(text) == (text, [])


@pytest.mark.parametrize("sign", ["@", "&#64;", "&amp;#64;", "&amp;amp;commat;"])
def test_an_address_is_masked_however_often_it_was_escaped(sign: str) -> None:
    assert prepared(f"write to jo{sign}example.org").texts == ["write to [email]"]


@pytest.mark.parametrize("phrase", ["\u200b", "&shy;", " \ufeff "])
def test_a_phrase_of_invisible_signs_masks_nothing(phrase: str) -> None:
    found = prepared("the good, (x) foo!", redact=Redact(custom=("foo", phrase)))
    assert found.texts == ["the good, (x) [redacted]!"]
    assert prepared("fine, so!", redact=Redact(custom=(phrase,))).personal == []


def test_masking_can_be_switched_off_by_kind() -> None:
    text = "jo@example.org or 07700 900123"
    assert Mask(Redact(emails=False))(text) == ("jo@example.org or [phone]", ["phones"])
    assert Mask(Redact(phones=False))(text) == ("[email] or 07700 900123", ["emails"])


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
    off = Redact(emails=False, phones=False)
    found = prepared("mail jo@example.org", "fine by me", redact=off)
    assert found.personal == [0]
    assert found.masked_emails == 0


def test_given_words_and_phrases_are_masked_in_any_case() -> None:
    redact = Redact(custom=("Dr Foster", "ward 7", "C++"))
    found = prepared("DR  FOSTER of Ward 7", "ward 77", "Learnt C++ there", redact=redact)
    assert found.texts == ["[redacted] of [redacted]", "ward 77", "Learnt [redacted] there"]
    assert (found.masked_custom, found.personal) == (2, [0, 2])


def test_a_given_word_is_no_pattern() -> None:
    assert prepared("aaaa", "(a+)+ b", redact=Redact(custom=("(a+)+",))).texts == [
        "aaaa",
        "[redacted] b",
    ]


def test_each_question_has_its_own_rule() -> None:
    both = Answers(
        ids=["1/liked", "1/improve"],
        texts=["Nothing", "Nothing"],
        groups={},
        columns=["liked", "improve"],
        questions=["What did you like?", "What could be better?"],
        column_of=[0, 1],
        source={},
    )
    found = prepare(both, Redact())
    assert found.text_of == [-1, 0]
    assert found.nothing_answers == [False, True]
    assert "In “improve” the question asks what could be better" in found.rule


LONG_ANSWER = "The parking was full. " * 20 + "The food was cold, and it came late. " * 12


def test_the_texts_of_a_person_are_theirs_and_what_several_say_is_nobodys() -> None:
    both = Answers(
        ids=["1/liked", "1/improve", "2/liked", "2/improve", "3/liked", "3/improve"],
        texts=["Clean rooms", LONG_ANSWER, "Parking", "Old beds", "Parking", ""],
        groups={},
        columns=["liked", "improve"],
        questions=[None, None],
        column_of=[0, 1] * 3,
        source={},
    )
    found = prepare(both, Redact())
    assert found.texts[-2:] == ["Parking", "Old beds"]
    of_first = len(found.texts) - 2
    assert of_first == 4
    assert authors(found) == [0] * of_first + [~of_first, 1]


def test_a_long_answer_is_several_texts_and_one_answer() -> None:
    given = answers(LONG_ANSWER, "Fine", LONG_ANSWER)
    found = prepare(given, Redact())
    assert len(found.texts) == 4
    assert found.split == 1
    assert found.wording_of == [0, 1, 0]
    assert people(found) == [2, 2, 2, 1]
    said = spans(given, found)
    assert [span.text for span in said[0]] == [0, 1, 2]
    assert said[0] == said[2]
    for span in said[0]:
        assert clean(LONG_ANSWER[span.start : span.end]) == found.texts[span.text]
    assert said[1] == [(3, 0, 4)]


PADDINGS = [
    "\n" * 1_500,
    " \t" * 900,
    "\u200b" * 1_200,
    "&nbsp;" * 400,
    "-" * 900,
    "\u00a0\n" * 800,
]


@pytest.mark.parametrize("padding", PADDINGS)
def test_a_part_that_says_nothing_is_no_text(padding: str) -> None:
    given = answers(
        f"Parking is bad.{padding}Thanks to the nurse.",
        f"{padding}{LONG_ANSWER}{padding}{LONG_ANSWER.upper()}{padding}",
        f"{padding}The food was cold.",
    )
    found = prepare(given, Redact())
    assert all(re.search(r"\w{3}", text) for text in found.texts)
    assert not any("nbs" in text for text in found.texts)
    first, second, third = spans(given, found)
    assert len(first) <= 2
    assert len(third) == 1
    assert 4 <= len(second) <= 8
    for text, start, end in second:
        said = clean(given.texts[1][start:end])
        assert said.casefold() == found.texts[text].casefold()
    assert clean(given.texts[2][third[0].start :]) == "The food was cold."


def test_escapes_make_no_answer_long() -> None:
    assert prepared("Tea &amp; cake. " * 45).split == 0
    assert prepared("Tea &amp; cake. " * 60).split == 1


def test_a_non_answer_says_no_text() -> None:
    given = answers("n/a", "Fine")
    assert spans(given, prepare(given, Redact())) == [[], [(0, 0, 4)]]


def test_parts_are_cut_only_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.pipelines.thematic.prepare.MAX_ANSWERS", 5)
    first, second = LONG_ANSWER, LONG_ANSWER.upper().replace("FOOD", "SOUP").replace("FULL", "FAR")
    found = prepared(first, second, first)
    assert (found.split, len(found.texts)) == (1, 4)
    assert clean(second) in found.texts


def test_no_part_cuts_through_personal_data() -> None:
    text = "Well then " * 39 + "ring +44 20 7946 0018 please. " + "And so on it went. " * 20
    found = prepared(text)
    assert len(found.texts) > 1
    assert not any(re.search(r"\d", part) for part in found.texts)
    assert sum("[phone]" in part for part in found.texts) == 1


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "run", ["x", "1", "1 ", "1/", "1" + " " * 99, "a.", "!", "+(", " ", "a@", "\n", "a@b.", "&amp;"]
)
def test_a_long_run_of_signs_takes_no_longer_than_other_texts(run: str) -> None:
    found = prepared("Fine", "See " + run * (100_000 // len(run)) + " there")
    assert found.texts[0] == "Fine"


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
