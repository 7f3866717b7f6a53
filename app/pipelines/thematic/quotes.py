"""Stage 8, quotes: verbatim slices of answers that are typical of a theme and unlike each other.

Chosen by maximal marginal relevance (Carbonell and Goldstein 1998). A quote is always a slice of
the answer as it was given, with its offsets; answers with an e-mail address or a phone number are
never quoted, whatever is masked elsewhere.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from app.pipelines.thematic.assigned import Assigned, Assignments
from app.pipelines.thematic.counting import Tables, tables
from app.pipelines.thematic.discover import Discovered
from app.pipelines.thematic.embed import Embedded
from app.pipelines.thematic.label import Labels
from app.pipelines.thematic.load import Answers
from app.pipelines.thematic.parts import Span
from app.pipelines.thematic.prepare import Prepared, spans
from app.pipelines.thematic.words import stem, tokens

SUBTHEME_QUOTES: Final = 3
OTHER_QUOTES: Final = 5
LONGEST: Final = 280  # characters; a longer answer is quoted by its sentences
GOOD_LENGTH: Final = range(40, 201)
RELEVANCE: Final = 0.7
CANDIDATES: Final = 200  # most central texts of a theme that are looked at
OUTSIDE_GOOD_LENGTH: Final = 0.15  # cosine that a very short or long answer has to make up for
SAME_GROUP: Final = 0.05
GARBLED: Final = 0.2
SAYS_THE_NAME: Final = 0.1  # a reader looks for the name's words in what is quoted below it

_GARBLED: Final = re.compile("\u00c3|\u00e2\u20ac|\ufffd")  # UTF-8 that was read as cp1252
_SENTENCE_END: Final = re.compile(r"[.!?]+(?=\s)|\n")


class Slice(TypedDict):
    """`text` is `answer[start:end]`, in code points of the answer as it was given."""

    response_id: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Quotes:
    """Quotes by theme, sub-theme and suggested theme, the most typical first; some of other."""

    themes: list[list[Slice]]
    subthemes: list[list[Slice]]
    other: list[Slice]
    suggested: list[list[Slice]]


def quotes(
    answers: Answers,
    prepared: Prepared,
    embedded: Embedded,
    found: Discovered,
    labels: Labels,
    assignments: Assignments,
    wanted: int,
) -> Quotes:
    """Choose up to `wanted` quotes per theme, up to three per sub-theme and five of other."""
    counted = tables(answers, prepared, assignments.of, len(labels.names))
    chooser = _Chooser(answers, prepared, embedded)
    fewer = min(wanted, SUBTHEME_QUOTES)
    score = [each.score or 0.0 for each in assignments.of]
    of_subtheme = subtheme_of_row(counted, found)
    others = {at for at, each in enumerate(counted.of_row) if each and each.status == "other"}
    return Quotes(
        themes=[
            chooser.choose(_members(assignments.of, theme), score, name, wanted)
            for theme, name in enumerate(labels.names)
        ],
        subthemes=[
            chooser.choose(
                [text for text, of in enumerate(found.subtheme_of) if of == subtheme],
                found.subscore,
                name,
                fewer,
                {at for at, of in enumerate(of_subtheme) if of == subtheme},
            )
            for subtheme, name in enumerate(labels.subnames)
        ],
        other=chooser.choose(
            sorted({counted.home[row] for row in others}),
            score,
            "",
            min(wanted, OTHER_QUOTES),
            others,
        ),
        suggested=[
            chooser.choose(texts, score, "", fewer, others) for texts in assignments.suggested
        ],
    )


def _members(assigned: Sequence[Assigned], theme: int) -> list[int]:
    """Texts with this primary theme; where there are none, those that list it at all."""
    primary = [text for text, each in enumerate(assigned) if each.themes[:1] == [theme]]
    return primary or [text for text, each in enumerate(assigned) if theme in each.themes]


def subtheme_of_row(counted: Tables, found: Discovered) -> list[int]:
    """Row -> the sub-theme within its primary theme that it lies in, -1 without one."""
    subthemes = []
    for each, text in zip(counted.of_row, counted.home, strict=True):
        subtheme = found.subtheme_of[text] if each is not None and each.themes else -1
        if each is not None and subtheme >= 0 and each.themes[0] != found.parent_of[subtheme]:
            subtheme = -1
        subthemes.append(subtheme)
    return subthemes


class _Chooser:
    def __init__(self, answers: Answers, prepared: Prepared, embedded: Embedded) -> None:
        self._answers = answers
        self._texts = prepared.texts
        self._vectors = embedded.vectors
        self._places: dict[int, dict[int, Span]] = defaultdict(dict)
        personal = set(prepared.personal)
        for row, said in enumerate(spans(answers, prepared)):
            for span in said if row not in personal else ():
                self._places[span.text].setdefault(row, span)
        self._rows: dict[int, list[int]] = {}
        self._group = next(iter(answers.groups.values()), None)

    def choose(
        self,
        members: list[int],
        score: Sequence[float],
        name: str,
        wanted: int,
        rows: Collection[int] | None = None,
    ) -> list[Slice]:
        """Up to `wanted` quotes from the texts `members`, of `rows` alone where they are given."""
        self._rows = {
            text: [row for row in self._places[text] if rows is None or row in rows]
            for text in members
            if text in self._places
        }
        shown = [text for text in members if self._rows.get(text)]
        named = {stem(word) for word in tokens(name)}
        worth = {
            text: score[text] - self._penalty(text) + self._bonus(text, named) for text in shown
        }
        pool = sorted(shown, key=lambda text: (-worth[text], text))[:CANDIDATES]
        if not pool:
            return []
        vectors = self._vectors[pool].astype(np.float32)
        merit = np.array([worth[text] for text in pool])
        nearest = np.zeros(len(pool))
        chosen: list[Slice] = []
        groups: set[str] = set()
        for _ in range(min(wanted, len(pool))):
            value = RELEVANCE * merit - (1.0 - RELEVANCE) * nearest - self._repeats(pool, groups)
            best = int(value.argmax())
            row = self._row(pool[best], groups)
            chosen.append(self._quote(row, self._places[pool[best]][row]))
            groups.add(self._group[row] if self._group else "")
            merit[best] = -np.inf
            nearest = np.maximum(nearest, vectors @ vectors[best])
        return chosen

    def _bonus(self, text: int, named: set[str]) -> float:
        words = {stem(word) for word in tokens(self._texts[text])}
        return 0.0 if words.isdisjoint(named) else SAYS_THE_NAME

    def _penalty(self, text: int) -> float:
        row = self._rows[text][0]
        span = self._places[text][row]
        original = self._answers.texts[row][span.start : span.end]
        garbled = GARBLED if _GARBLED.search(original) else 0.0
        return garbled + self._length_penalty(len(original))

    @staticmethod
    def _length_penalty(length: int) -> float:
        if length in GOOD_LENGTH:
            return 0.0
        if length < GOOD_LENGTH.start:
            return OUTSIDE_GOOD_LENGTH * (1.0 - length / GOOD_LENGTH.start)
        return OUTSIDE_GOOD_LENGTH * min(1.0, length / GOOD_LENGTH.stop - 1.0)

    def _repeats(self, pool: list[int], groups: set[str]) -> NDArray[np.float64]:
        """What a text loses for coming from a group that has been quoted."""
        group = self._group
        if group is None:
            return np.zeros(len(pool))
        return np.array(
            [SAME_GROUP * all(group[row] in groups for row in self._rows[text]) for text in pool]
        )

    def _row(self, text: int, groups: set[str]) -> int:
        """The first row that gave this answer, of a group not yet quoted where there is one."""
        rows = self._rows[text]
        if self._group is None:
            return rows[0]
        return next((row for row in rows if self._group[row] not in groups), rows[0])

    def _quote(self, row: int, span: Span) -> Slice:
        original = self._answers.texts[row]
        start, end = (span.start + at for at in excerpt(original[span.start : span.end]))
        return Slice(
            response_id=self._answers.ids[row], text=original[start:end], start=start, end=end
        )


def excerpt(original: str) -> tuple[int, int]:
    """Offsets of the part to quote: all of it, or the whole sentences that fit, from the first.

    A first sentence that alone is too long is cut between two words.
    """
    start = len(original) - len(original.lstrip())
    end = len(original.rstrip())
    if end - start <= LONGEST:
        return start, end
    within = original[start : start + LONGEST + 1]
    fitting = [at.end() for at in _SENTENCE_END.finditer(within) if at.end() <= LONGEST]
    if fitting:
        return start, start + len(within[: fitting[-1]].rstrip())
    cut = original.rfind(" ", start, start + LONGEST)
    return start, cut if cut > start else start + LONGEST
