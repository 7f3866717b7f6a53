"""Stage 2, prepare: clean texts, masked personal data, non-answers set apart, doubles joined.

What is compared, clustered and shown to a model are `Prepared.texts`: every wording once, long
answers in parts. What is counted are the answers: `spans` leads from one to the other.
"""

import html
import re
import unicodedata
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Final

from app.domain.errors import DatasetError
from app.pipelines.thematic.languages import language
from app.pipelines.thematic.load import Answers
from app.pipelines.thematic.non_answers import asks_what_to_improve, is_non_answer, rule
from app.pipelines.thematic.parameters import MAX_ANSWERS, Redact
from app.pipelines.thematic.parts import LONG, Span, cut
from app.pipelines.thematic.people import People
from app.pipelines.thematic.words import MASKS

# No attempt begins within a run that another one began: an answer may be 100,000 signs of one run.
_EMAIL: Final = re.compile(r"(?<![\w.+-])[\w.+-]++@[\w-]++(?:\.[\w-]++)+")
_PHONE: Final = re.compile(
    r"[+(\uff08\uff0b]{0,2}+\d(?:[\s()./\u2010-\u2015\u2212\u30fc\uff08\uff09\uff0d-\uff0f-]*+\d)*+"
)
"""A run of digits as far as it goes, with all that may stand within a telephone number."""

_NO_PHONE: Final = re.compile(
    r"(?<![\d./-])(?:"
    r"\d{1,2}([./-])\d{1,2}\1(?:19|20)\d\d|(?:19|20)\d\d([./-])\d{1,2}\2\d{1,2}|\d{1,2}/\d{1,2}/\d\d"
    r"|(?:19|20)\d\d/(?:19|20)?\d\d|(?:0|[1-9]\d?)/(?:5|10)|\d{1,3}/100"
    r")(?![./-]?\d)"
)
"""Dates, school years and marks out of 5, 10 or 100."""

_PHONE_DIGITS: Final = 9  # at least; fewer is a date, a price, a count
_ESCAPE: Final = re.compile(r"&#?\w{1,31};")
_PADDING: Final = re.compile(r"(?:&#?\w{1,31};|[\W_]){20,}+")
_ESCAPES: Final = 3  # an export of an export of a form; no bound would take long on purpose
_INVISIBLE: Final = re.compile(r"[\u00ad\u200b-\u200f\u2028-\u202e\u2060\ufeff\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Prepared:
    """Unique texts, and where each answer went.

    Attributes:
        texts: clean, masked, each once, in the order of first appearance; parts of long answers.
        text_of: answer -> index in `texts`, of its first part if it is long; -1 for a non-answer.
        wording_of: answer -> number of its wording, -1 for a non-answer; long answers whole.
        parts: [answer, text, start, end] of every part of the answers that were cut, but for parts
            that say nothing.
        personal: answers that hold an e-mail address, a phone number or a word to be masked: never
            quoted.
        non_answers: wording -> rows, most frequent first; "" for empty and signs only.
        empty: rows without any text.
        split: wordings that were cut.
        masked_emails: rows in which an address was masked.
        masked_phones: rows in which a number was masked.
        masked_custom: rows in which a given word or phrase was masked.
        rule: how non-answers were told from answers, for people.
        nothing_answers: text column -> whether "nothing" is an answer there.
        language_of: wording -> code of its language.
    """

    texts: list[str]
    text_of: list[int]
    wording_of: list[int]
    parts: list[list[int]]
    personal: list[int]
    non_answers: dict[str, int]
    empty: int
    split: int
    masked_emails: int
    masked_phones: int
    masked_custom: int
    rule: str
    nothing_answers: list[bool]
    language_of: list[str]


def prepare(answers: Answers, redact: Redact) -> Prepared:
    """Clean, mask, cut and sort the answers.

    Raises:
        DatasetError: no row holds an answer.
    """
    nothing_answers = [asks_what_to_improve(question) for question in answers.questions]
    mask = Mask(redact)
    sorter = _Sorter(spare=max(0, MAX_ANSWERS - len(answers.texts)))
    personal: list[int] = []
    non_answers: Counter[str] = Counter()
    masked: Counter[str] = Counter()
    for row, original in enumerate(answers.texts):
        text, found = mask(clean(original))
        masked.update(found)
        if mask.holds_personal_data(original):
            personal.append(row)
        wording = normalise(text)
        nothing_answers_here = nothing_answers[answers.column_of[row]]
        if is_non_answer(wording, nothing_answers=nothing_answers_here):
            non_answers[wording] += 1
            sorter.set_apart()
        else:
            sorter.add(row, original, text, mask)
    if not sorter.texts:
        raise DatasetError(
            f"nothing to analyse: {len(answers.texts)} rows, all of them empty or non-answers"
            if answers.texts
            else "nothing to analyse: there are no answers"
        )
    return Prepared(
        texts=sorter.texts,
        text_of=sorter.text_of,
        wording_of=sorter.wording_of,
        parts=sorter.parts,
        personal=personal,
        non_answers=dict(sorted(non_answers.items(), key=lambda item: (-item[1], item[0]))),
        empty=sum(1 for text in answers.texts if not text.strip()),
        split=sorter.split,
        masked_emails=masked["emails"],
        masked_phones=masked["phones"],
        masked_custom=masked["custom"],
        rule=rule(answers, nothing_answers),
        nothing_answers=nothing_answers,
        language_of=sorter.language_of,
    )


class _Sorter:
    """Gives every wording its texts.

    Args:
        spare: texts that cutting may add.
    """

    def __init__(self, spare: int) -> None:
        self.texts: list[str] = []
        self.text_of: list[int] = []
        self.wording_of: list[int] = []
        self.parts: list[list[int]] = []
        self._spare = spare
        self._cut: set[int] = set()
        self._index_of: dict[str, int] = {}
        self._wordings: dict[str, int] = {}
        self.language_of: list[str] = []

    def set_apart(self) -> None:
        """The next answer is none."""
        self.text_of.append(-1)
        self.wording_of.append(-1)

    def add(self, row: int, original: str, text: str, mask: "Mask") -> None:
        """Sort in the next answer: as it was given, and cleaned and masked."""
        key = text.casefold()
        if key not in self._wordings:
            self._wordings[key] = len(self._wordings)
            self.language_of.append(language(text))
        wording = self._wordings[key]
        self.wording_of.append(wording)
        parts = _parts(original, mask) if len(text) > LONG else {}
        more = len({part.casefold() for part in parts.values()} - self._index_of.keys()) - 1
        if len(parts) <= 1 or more > self._spare:
            self.text_of.append(self._text(text))
            return
        self._spare -= max(0, more)
        self._cut.add(wording)
        texts = [self._text(part) for part in parts.values()]
        self.text_of.append(texts[0])
        for part_text, (start, end) in zip(texts, parts, strict=True):
            self.parts.append([row, part_text, start, end])

    def _text(self, text: str) -> int:
        key = text.casefold()
        if key not in self._index_of:
            self._index_of[key] = len(self.texts)
            self.texts.append(text)
        return self._index_of[key]

    @property
    def split(self) -> int:
        """Wordings that were cut."""
        return len(self._cut)


def _parts(original: str, mask: "Mask") -> dict[tuple[int, int], str]:
    """Slice -> cleaned and masked text of each part that says something."""
    escapes = [match.span() for match in _ESCAPE.finditer(original)]
    slices = [
        (_behind_padding(original, start, end), end)
        for start, end in cut(original, sorted([*mask.found_in(original), *escapes]))
    ]
    parts = {(start, end): mask(clean(original[start:end]))[0] for start, end in slices}
    return {at: part for at, part in parts.items() if normalise(part)}


def _behind_padding(original: str, start: int, end: int) -> int:
    """Where a slice begins to say something, so that a quote of it does."""
    padding = _PADDING.match(original, start, end)
    return padding.end() if padding else start


def spans(answers: Answers, prepared: Prepared) -> list[list[Span]]:
    """By answer, which texts it says and where in it; none for a non-answer."""
    by_answer: list[list[Span]] = [[] for _ in answers.texts]
    for row, text, start, end in prepared.parts:
        by_answer[row].append(Span(text, start, end))
    for row, text in enumerate(prepared.text_of):
        if text >= 0 and not by_answer[row]:
            original = answers.texts[row]
            start = _behind_padding(original, 0, len(original))
            by_answer[row].append(Span(text, start, len(original)))
    return by_answer


def people(prepared: Prepared) -> People:
    """How many answers say each text of `prepared.texts`, and which answers say several."""
    said = defaultdict[int, dict[int, None]](dict)
    for row, text, _, _ in prepared.parts:
        said[row][text] = None
    for row, text in enumerate(prepared.text_of):
        if text >= 0:
            said[row][text] = None
    counts = Counter(text for texts in said.values() for text in texts)
    return People(
        (counts[text] for text in range(len(prepared.texts))),
        (list(texts) for texts in said.values() if len(texts) > 1),
    )


def speakers(prepared: Prepared) -> list[set[int]]:
    """Who says each text; a person who gave several answers, or a long one, says several."""
    # Answers of one person to several questions stand side by side.
    columns = max(1, len(prepared.nothing_answers))
    said_by: list[set[int]] = [set() for _ in prepared.texts]
    for row, text, _, _ in prepared.parts:
        said_by[text].add(row // columns)
    for row, text in enumerate(prepared.text_of):
        if text >= 0:
            said_by[text].add(row // columns)
    return said_by


def authors(prepared: Prepared) -> list[int]:
    """Whose each text is: the one person's that says it; a number of its own where several do."""
    return [
        next(iter(people)) if len(people) == 1 else ~text
        for text, people in enumerate(speakers(prepared))
    ]


def clean(text: str) -> str:
    """HTML entities decoded, invisible signs removed, NFC, white space collapsed."""
    for _ in range(_ESCAPES):
        text = html.unescape(text)
    visible = _INVISIBLE.sub("", text)
    return " ".join(unicodedata.normalize("NFC", visible).split())


class Mask:
    """Replaces personal data in cleaned texts, and says what kinds it found.

    Args:
        redact: which kinds are replaced.
    """

    def __init__(self, redact: Redact) -> None:
        self._redact = redact
        # A phrase of invisible signs is none, and would be found everywhere.
        phrases = sorted(
            {clean(phrase) for phrase in redact.custom} - {""}, key=lambda phrase: -len(phrase)
        )
        either = "|".join(map(re.escape, phrases))
        self._custom = re.compile(rf"(?<!\w)(?:{either})(?!\w)", re.IGNORECASE) if either else None

    def __call__(self, text: str) -> tuple[str, list[str]]:
        """The text with personal data replaced, and which of "custom", "emails", "phones"."""
        found = []
        if self._redact.emails and _EMAIL.search(text):
            text = _EMAIL.sub(MASKS[0], text)
            found.append("emails")
        if self._redact.phones and any(_is_phone(match) for match in _PHONE.finditer(text)):
            text = _PHONE.sub(lambda match: MASKS[1] if _is_phone(match) else match.group(), text)
            found.append("phones")
        if self._custom is not None and self._custom.search(text):
            text = self._custom.sub(MASKS[2], text)
            found.append("custom")
        return text, found

    def found_in(self, text: str) -> list[tuple[int, int]]:
        """Where personal data stand, in order, masked or not."""
        found = [match.span() for match in _EMAIL.finditer(text)]
        found += [match.span() for match in _PHONE.finditer(text) if _is_phone(match)]
        if self._custom is not None:
            found += [match.span() for match in self._custom.finditer(text)]
        return sorted(found)

    def holds_personal_data(self, original: str) -> bool:
        """Whether there is anything in an answer for which it should not be quoted."""
        return bool(self.found_in(clean(original)))


def normalise(text: str) -> str:
    """Lower-case words alone, so that "N/A." and "n/a" or "Don't know" and "dont know" meet."""
    letters = re.sub(
        r"[^\w\s]|_", "", text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    ).casefold()
    return " ".join(letters.split())


def _is_phone(match: re.Match[str]) -> bool:
    return sum(map(str.isdigit, _NO_PHONE.sub("", match.group()))) >= _PHONE_DIGITS
