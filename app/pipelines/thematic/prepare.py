"""Stage 2, prepare: clean texts, masked personal data, non-answers set apart, doubles joined.

Whether "nothing" is a non-answer depends on the question, and the rule is this: where the question
asks what could be better ("How could we improve?"), "nothing", "no" or "none" says that all is
well and is analysed as any answer; under every other question, and without one, it says nothing.
"Did not answer", "n/a", "don't know" and the like are non-answers always.
"""

import html
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import Final

from app.domain.errors import DatasetError
from app.pipelines.thematic.load import Answers
from app.pipelines.thematic.parameters import Redact
from app.pipelines.thematic.words import MASKS, is_stop, tokens

NON_ANSWERS: Final = frozenset(
    [
        "",
        "as above",
        "as before",
        "cant comment",
        "did not answer",
        "did not say",
        "ditto",
        "dk",
        "do not know",
        "dont know",
        "i do not know",
        "i dont know",
        "idk",
        "na",
        "nan",
        "no answer",
        "no comment",
        "no comments",
        "no further comment",
        "no further comments",
        "no idea",
        "no opinion",
        "no reply",
        "no response",
        "none given",
        "not answered",
        "not applicable",
        "not available",
        "not stated",
        "not sure",
        "nothing to add",
        "nothing to say",
        "null",
        "prefer not to answer",
        "prefer not to say",
        "refused",
        "same as above",
        "see above",
        "skip",
        "unsure",
        "x",
        "xx",
        "xxx",
    ]
)
"""Say nothing under any question; compared after `normalise`."""

NOTHINGS: Final = frozenset(
    [
        "absolutely nothing",
        "cannot think of anything",
        "cant think of any",
        "cant think of anything",
        "i cant think of anything",
        "nil",
        "no",
        "no nothing",
        "no thank you",
        "no thanks",
        "none",
        "none at all",
        "nope",
        "not a thing",
        "not really",
        "nothing",
        "nothing at all",
        "nothing comes to mind",
        "nothing else",
        "nothing i can think of",
        "nothing in particular",
        "nothing more",
        "nothing much",
        "nothing really",
        "nothing springs to mind",
        "nothing specific",
        "nothing thank you",
        "nothing thanks",
    ]
)
"""Say that all is well where the question asks what could be better, and nothing otherwise."""

_ASKS_WHAT_TO_IMPROVE: Final = re.compile(
    r"\b(improv\w*|better|chang(?:e|es|ed)|differently|dislik\w*|wrong|worse|worst|problems?"
    r"|issues?|concerns?|missing|frustrat\w*|dissatisf\w*|complain\w*)\b",
    re.IGNORECASE,
)
_EMAIL: Final = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_PHONE: Final = re.compile(r"(?<![\w.])[+(]?\d[\d\s().-]{7,}\d(?!\w)")
_PHONE_DIGITS: Final = range(9, 16)  # E.164 allows 15; fewer than 9 is a date, a price, a count
_INVISIBLE: Final = re.compile(r"[\u00ad\u200b-\u200f\u2028-\u202e\u2060\ufeff\ud800-\udfff]")
_JUDGED_WORDS: Final = 4


@dataclass(frozen=True, slots=True)
class Prepared:
    """Unique texts, and where each row went.

    Attributes:
        texts: clean, masked, each once, in the order of first appearance.
        text_of: row -> index in `texts`, -1 for a non-answer.
        personal: rows whose answer holds an e-mail address or a phone number: never quoted.
        non_answers: wording -> rows, most frequent first; "" for empty and signs only.
        empty: rows without any text.
        masked_emails: rows in which an address was masked.
        masked_phones: rows in which a number was masked.
        rule: how non-answers were told from answers, for people.
        foreign_share: share of the longer texts in which no English function word occurs.
    """

    texts: list[str]
    text_of: list[int]
    personal: list[int]
    non_answers: dict[str, int]
    empty: int
    masked_emails: int
    masked_phones: int
    rule: str
    foreign_share: float


def prepare(answers: Answers, question: str | None, redact: Redact) -> Prepared:
    """Clean, mask and sort the answers.

    Raises:
        DatasetError: no row holds an answer.
    """
    nothing_answers = question is not None and _ASKS_WHAT_TO_IMPROVE.search(question) is not None
    silent = NON_ANSWERS if nothing_answers else NON_ANSWERS | NOTHINGS
    index_of: dict[str, int] = {}
    texts: list[str] = []
    text_of: list[int] = []
    personal: list[int] = []
    non_answers: Counter[str] = Counter()
    masked: Counter[str] = Counter()
    for row, original in enumerate(answers.texts):
        text, found = mask(clean(original), redact)
        masked.update(found)
        if holds_personal_data(original):
            personal.append(row)
        wording = normalise(text)
        if wording in silent:
            non_answers[wording] += 1
            text_of.append(-1)
            continue
        key = text.casefold()
        if key not in index_of:
            index_of[key] = len(texts)
            texts.append(text)
        text_of.append(index_of[key])
    if not texts:
        raise DatasetError(
            f"nothing to analyse: {len(answers.texts)} rows, all of them empty or non-answers"
            if answers.texts
            else "nothing to analyse: there are no answers"
        )
    return Prepared(
        texts=texts,
        text_of=text_of,
        personal=personal,
        non_answers=dict(sorted(non_answers.items(), key=lambda item: (-item[1], item[0]))),
        empty=sum(1 for text in answers.texts if not text.strip()),
        masked_emails=masked["emails"],
        masked_phones=masked["phones"],
        rule=_rule(question, nothing_answers=nothing_answers),
        foreign_share=_foreign_share(texts),
    )


def people(prepared: Prepared) -> list[int]:
    """How many rows say each text of `prepared.texts`."""
    counts = Counter(prepared.text_of)
    return [counts[text] for text in range(len(prepared.texts))]


def clean(text: str) -> str:
    """HTML entities decoded, invisible signs removed, NFC, white space collapsed."""
    visible = _INVISIBLE.sub("", html.unescape(text))
    return " ".join(unicodedata.normalize("NFC", visible).split())


def mask(text: str, redact: Redact) -> tuple[str, list[str]]:
    """The text with personal data replaced, and which kinds ("emails", "phones") were found."""
    found = []
    if redact.emails and _EMAIL.search(text):
        text = _EMAIL.sub(MASKS[0], text)
        found.append("emails")
    if redact.phones and any(_is_phone(match) for match in _PHONE.finditer(text)):
        text = _PHONE.sub(lambda match: MASKS[1] if _is_phone(match) else match.group(), text)
        found.append("phones")
    return text, found


def holds_personal_data(text: str) -> bool:
    """Whether an e-mail address or a phone number stands in an answer, masked elsewhere or not."""
    plain = clean(text)
    return _EMAIL.search(plain) is not None or any(map(_is_phone, _PHONE.finditer(plain)))


def normalise(text: str) -> str:
    """Lower-case words alone, so that "N/A." and "n/a" or "Don't know" and "dont know" meet."""
    letters = re.sub(
        r"[^\w\s]|_", "", text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    ).casefold()
    return " ".join(letters.split())


def _is_phone(match: re.Match[str]) -> bool:
    return sum(sign.isdigit() for sign in match.group()) in _PHONE_DIGITS


def _rule(question: str | None, *, nothing_answers: bool) -> str:
    if nothing_answers:
        return (
            "The question asks what could be better, so “nothing”, “no” or “none” was analysed as "
            "an answer; empty cells, “n/a”, “don't know” and the like were set apart."
        )
    why = "no question was given" if question is None else "the question asks for no improvement"
    return (
        f"Since {why}, “nothing”, “no” or “none” was set apart together with empty cells, “n/a”, "
        "“don't know” and the like."
    )


def _foreign_share(texts: list[str]) -> float:
    """English puts a function word into nearly every longer text, other languages into none."""
    judged = [words for words in map(tokens, texts) if len(words) > _JUDGED_WORDS]
    foreign = sum(1 for words in judged if not any(is_stop(word) for word in words))
    return round(foreign / len(judged), 4) if judged else 0.0
