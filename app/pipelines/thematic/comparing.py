"""What stands out in the counts: groups that speak of a theme more often, themes in pairs.

Both are told only where chance is a poor explanation: by the exact test of a two by two table
(Fisher; the upper tail of the hypergeometric distribution), held against SIGNIFICANCE over all
that was looked at (Bonferroni), so that of a hundred surveys without any difference about one
tells of one. A normal approximation will not do: one answer of 30 against seven of 4,970 has
z = 4.4 and comes by chance once in twenty times.

The test takes answers for independent of each other, and those of one person to several questions
are not. So each text column is tested by itself, which holds one answer of each person, and counts
as a comparison of its own.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from app.pipelines.thematic.counting import Tables
from app.pipelines.thematic.load import Answers
from app.results.facts import z_of

SIGNIFICANCE: Final = 0.01
"""How often a survey without any difference may tell one, by chance."""
MIN_GROUP: Final = 30  # analysed answers; of fewer people nothing is said
LEAST_ANSWERS: Final = 5
"""Nothing is told that rests on fewer answers, however unlikely they are."""


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """A group that speaks of a theme more often than all others; the clearest sort first.

    Attributes:
        log_chance: natural logarithm of the chance of so many, by the clearest text column.
        column: of `group_by`.
        here: answers of the group with the theme, of `size`.
        there: other answers with it, of `rest`.
    """

    log_chance: float
    column: str
    group: str
    theme: int
    here: int
    size: int
    there: int
    rest: int

    @property
    def z(self) -> float:
        """How far the two shares are apart, for comparison with other tables."""
        return z_of(self.here, self.size, self.there, self.rest)


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """Two themes that come up in one answer more often than by chance; the clearest sort first."""

    log_chance: float
    first: int
    second: int
    times: int


def log_chance(here: int, size: int, hits: int, whole: int) -> float:
    """Natural logarithm of the chance of `here` or more hits among `size` drawn out of `whole`.

    The upper tail of the hypergeometric distribution, exact but for rounding (1e-9 and less of
    it). 0, a chance of 1, where there are no more hits than are to be expected.

    Args:
        hits: among all of `whole`.
    """
    if here * whole <= size * hits:
        return 0.0
    first = _log_choose(hits, here) + _log_choose(whole - hits, size - here)
    first -= _log_choose(whole, size)
    # Beyond what is expected each further term is smaller than the one before.
    term = total = 1.0
    for more in range(here, min(hits, size)):
        term *= (hits - more) * (size - more)
        term /= (more + 1) * (whole - hits - size + more + 1)
        total += term
        if term < total * _NEGLIGIBLE:
            break
    return min(0.0, first + math.log(total))


def differences(answers: Answers, counted: Tables) -> list[Difference]:
    """All differences between groups that chance hardly explains, the clearest first."""
    looked_at = 0
    clearest: dict[tuple[str, str, int], float] = {}
    tables = {column: _Groups(answers, counted, column) for column in answers.groups}
    for column, table in tables.items():
        for asked in range(len(answers.columns)):
            for group in table.groups(asked):
                looked_at += len(counted.responses)
                for theme, chance in table.chances(asked, group):
                    key = column, group, theme
                    clearest[key] = min(chance, clearest.get(key, 0.0))
    limit = _limit(looked_at)
    found = [
        Difference(chance, *key, *tables[key[0]].counts(key[1], key[2]))
        for key, chance in clearest.items()
        if chance <= limit
    ]
    # With several questions a group may lead in one and not in all of them, which are told.
    return sorted(each for each in found if each.z > 0)


def pairs(answers: Answers, counted: Tables) -> list[Pair]:
    """All pairs of themes that chance hardly explains, the clearest first.

    Only of what a model assigned, that read the answers: a second theme by nearness of vectors
    says how the program measures, and nothing of people.
    """
    alone: Counter[tuple[int, int]] = Counter()
    both: Counter[tuple[int, int, int]] = Counter()
    rows: Counter[int] = Counter()
    for asked, each in zip(answers.column_of, counted.of_row, strict=True):
        if each is not None and each.method == "llm" and each.themes:
            rows[asked] += 1
            alone.update((asked, theme) for theme in each.themes)
            both.update((asked, *pair) for pair in combinations(sorted(each.themes), 2))
    themes = sum(map(bool, counted.responses))
    limit = _limit(len(rows) * themes * (themes - 1) // 2)
    clearest: dict[tuple[int, int], float] = {}
    for (asked, first, second), times in both.items():
        if times >= LEAST_ANSWERS:
            chance = log_chance(times, alone[asked, first], alone[asked, second], rows[asked])
            if chance <= limit:
                clearest[first, second] = min(chance, clearest.get((first, second), 0.0))
    listed = [each.themes for each in counted.of_row if each is not None]
    return sorted(
        Pair(chance, first, second, sum({first, second} <= set(themes) for themes in listed))
        for (first, second), chance in clearest.items()
    )


class _Groups:
    """Analysed answers by text column, by the groups of one column, and by theme."""

    def __init__(self, answers: Answers, counted: Tables, column: str) -> None:
        self._themes = range(len(counted.responses))
        self._responses = counted.responses
        self._analysed = counted.analysed
        self._sizes: Counter[tuple[int, str]] = Counter()
        self._hits: Counter[tuple[int, str, int]] = Counter()
        self._rows: Counter[int] = Counter()
        self._with: Counter[tuple[int, int]] = Counter()
        self._columns = range(len(answers.columns))
        rows = zip(answers.column_of, answers.groups[column], counted.of_row, strict=True)
        for asked, group, each in rows:
            if each is not None and each.status != "non_answer":
                self._rows[asked] += 1
                self._sizes[asked, group] += 1
                self._with.update((asked, theme) for theme in each.themes)
                self._hits.update((asked, group, theme) for theme in each.themes)

    def groups(self, asked: int) -> list[str]:
        """Those that are large enough in this text column, as are all others together."""
        return sorted(
            group
            for (column, group), size in self._sizes.items()
            if column == asked and min(size, self._rows[asked] - size) >= MIN_GROUP
        )

    def chances(self, asked: int, group: str) -> Iterator[tuple[int, float]]:
        """Themes that come up often enough in the group, each with the logarithm of its chance."""
        for theme in self._themes:
            here = self._hits[asked, group, theme]
            if here >= LEAST_ANSWERS:
                size, hits = self._sizes[asked, group], self._with[asked, theme]
                yield theme, log_chance(here, size, hits, self._rows[asked])

    def counts(self, group: str, theme: int) -> tuple[int, int, int, int]:
        """Over all text columns: here, size, there, rest."""
        here = sum(self._hits[asked, group, theme] for asked in self._columns)
        size = sum(self._sizes[asked, group] for asked in self._columns)
        return here, size, self._responses[theme] - here, self._analysed - size


def _log_choose(of: int, chosen: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(chosen + 1) - math.lgamma(of - chosen + 1)


def _limit(looked_at: int) -> float:
    return math.log(SIGNIFICANCE / max(1, looked_at))


_NEGLIGIBLE: Final = 1e-12
