"""The numbers of insights, counted again: from the assignments and the counts by group.

What an insight's numbers are called tells what kind of fact they are. A sentence of a model may
rest on several facts; the numbers of each then stand behind its id ("F1.responses").
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import permutations
from typing import Final

from app.results.groups import Sizes
from app.results.themes import Insight, Theme, ThemesResult

STANCES: Final = ("positive", "negative", "mixed", "neutral")
LEAST_JUDGED: Final = 30
"""Answers with a known stance that a theme needs to be compared with others by their shares."""

_IN_QUOTES: Final = re.compile(r"“([^“”]*)”")
# Shares are given in full, z to two places.
_SAME: Final = {"z": 0.0051}
_SAME_SHARE: Final = 1e-9

Numbers = Mapping[str, int | float]


def z_of(here: int, size: int, there: int, rest: int) -> float:
    """How far `here` of `size` and `there` of `rest` are apart: z of a two-proportion test."""
    pooled = (here + there) / (size + rest)
    spread = math.sqrt(max(0.0, pooled * (1.0 - pooled) * (1.0 / size + 1.0 / rest)))
    return (here / size - there / rest) / spread if spread else 0.0


class Recount:
    """Counts a result's facts again, and tells which of an insight's do not hold.

    Args:
        result: as given.
        sizes: analysed answers of its groups.
    """

    def __init__(self, result: ThemesResult, sizes: Sizes) -> None:
        self._result = result
        self._sizes = sizes
        self._listed = [set(entry.theme_ids) for entry in result.assignments]
        self._statuses = Counter(entry.status for entry in result.assignments)
        self._analysed = self._statuses.total() - self._statuses["non_answer"]
        self._themes = {theme.id: theme for theme in result.themes}
        self._told: dict[str, Counter[str]] = defaultdict(Counter)
        for entry in result.assignments:
            for theme, stance in (entry.stance or {}).items():
                self._told[theme][stance] += 1
        self._kinds: dict[frozenset[str], Callable[[Insight, Numbers], Iterable[Numbers]]] = {
            frozenset({"responses", "analysed", "share"}): self._size,
            frozenset({"largest", "themes", "responses", "analysed", "share"}): self._largest,
            frozenset(
                {"responses", "group_size", "share"}
                | {"responses_elsewhere", "size_elsewhere", "share_elsewhere"}
            ): self._difference,
            frozenset(
                {"together", "responses_first", "share_first"}
                | {"responses_second", "share_second"}
            ): self._together,
            **{frozenset({stance, "judged", "share"}): self._stance for stance in STANCES},
            **{
                frozenset({stance, "judged", "share", "least_judged"}): self._most_often
                for stance in STANCES
            },
            frozenset({"non_answers", "rows", "share"}): self._rest,
            frozenset({"other", "analysed", "share"}): self._rest,
            frozenset({"failed", "analysed", "share"}): self._rest,
        }

    def problems(self, insight: Insight) -> Iterator[str]:
        """What is wrong with the numbers of `insight`, and with the names that it quotes."""
        names = {_bare(self._themes[theme].name) for theme in insight.theme_ids
                 if theme in self._themes}  # fmt: skip
        for column, groups in self._sizes.items():
            names |= {_bare(column), *map(_bare, groups)}
        for name in _IN_QUOTES.findall(insight.text):
            if name not in names:
                yield f"quotes “{name}”, which is none of its themes or groups"
        for numbers in _by_fact(insight.numbers):
            stated = ", ".join(f"{name} {value:g}" for name, value in numbers.items())
            count = self._kinds.get(frozenset(numbers) - {"z"})
            if count is None:
                yield f"rests on numbers of no known kind: {stated}"
            elif not any(_agree(numbers, counted) for counted in count(insight, numbers)):
                yield f"rests on numbers that are not so: {stated}"

    def _of(self, insight: Insight) -> list[Theme]:
        return [self._themes[theme] for theme in insight.theme_ids if theme in self._themes]

    def _size(self, insight: Insight, _: Numbers) -> Iterator[Numbers]:
        for theme in insight.theme_ids:
            yield self._share_of({theme})

    def _share_of(self, themes: set[str]) -> dict[str, int | float]:
        responses = sum(not themes.isdisjoint(listed) for listed in self._listed)
        share = _share(responses, self._analysed)
        return {"responses": responses, "analysed": self._analysed, "share": share}

    def _largest(self, insight: Insight, numbers: Numbers) -> Iterator[Numbers]:
        held = Counter(theme for listed in self._listed for theme in listed)
        # `sorted` leaves themes of one size in the result's order.
        tops = [theme.id for theme in self._result.themes if theme.parent is None]
        top = sorted(tops, key=lambda theme: -held[theme])[: int(numbers["largest"])]
        if set(top) <= set(insight.theme_ids):
            yield {"largest": len(top), "themes": len(held), **self._share_of(set(top))}

    def _difference(self, insight: Insight, numbers: Numbers) -> Iterator[Numbers]:
        quoted = set(_IN_QUOTES.findall(insight.text))
        size, rest = numbers["group_size"], self._analysed - numbers["group_size"]
        for theme in self._of(insight):
            for column in _said(theme.by_group, quoted):
                for group in _said(theme.by_group[column], quoted):
                    if size in self._sizes.get(column, {}).get(group, ()) and rest > 0 < size:
                        here = theme.by_group[column][group].responses
                        yield self._against(here, int(size), theme.responses - here)

    def _against(self, here: int, size: int, there: int) -> Numbers:
        rest = self._analysed - size
        return {
            "responses": here,
            "group_size": size,
            "share": here / size,
            "responses_elsewhere": there,
            "size_elsewhere": rest,
            "share_elsewhere": there / rest,
            "z": z_of(here, size, there, rest),
        }

    def _together(self, insight: Insight, _: Numbers) -> Iterator[Numbers]:
        for first, second in permutations(insight.theme_ids, 2):
            of_first = sum(first in listed for listed in self._listed)
            of_second = sum(second in listed for listed in self._listed)
            times = sum({first, second} <= listed for listed in self._listed)
            rest = self._analysed - of_first
            yield {
                "together": times,
                "responses_first": of_first,
                "share_first": _share(times, of_first),
                "responses_second": of_second,
                "share_second": _share(times, of_second),
                "z": z_of(times, of_first, of_second - times, rest) if of_first and rest else 0.0,
            }

    def _stance(self, insight: Insight, _: Numbers) -> Iterator[Numbers]:
        for theme in insight.theme_ids:
            for stance in STANCES:
                yield self._stance_to(theme, stance)

    def _stance_to(self, theme: str, stance: str) -> dict[str, int | float]:
        times, judged = self._told[theme][stance], self._told[theme].total()
        return {stance: times, "judged": judged, "share": _share(times, judged)}

    def _most_often(self, insight: Insight, numbers: Numbers) -> Iterator[Numbers]:
        """No other theme that was judged often enough has a larger share of this stance."""
        [stance] = set(numbers) & set(STANCES)
        large = [theme for theme in self._told if self._told[theme].total() >= LEAST_JUDGED]
        most = max((self._stance_to(theme, stance)["share"] for theme in large), default=0)
        for theme in insight.theme_ids:
            counted = self._stance_to(theme, stance)
            if theme in large and counted["share"] >= most:
                yield {**counted, "least_judged": LEAST_JUDGED}

    def _rest(self, _insight: Insight, _: Numbers) -> Iterator[Numbers]:
        statuses, analysed, rows = self._statuses, self._analysed, len(self._listed)
        silent, other, failed = (statuses[name] for name in ("non_answer", "other", "failed"))
        yield {"non_answers": silent, "rows": rows, "share": _share(silent, rows)}
        yield {"other": other, "analysed": analysed, "share": _share(other, analysed)}
        yield {"failed": failed, "analysed": analysed, "share": _share(failed, analysed)}


def _by_fact(numbers: Numbers) -> list[Numbers]:
    facts: dict[str, dict[str, int | float]] = defaultdict(dict)
    for name, value in numbers.items():
        fact, _, plain = name.rpartition(".")
        facts[fact][plain] = value
    return list(facts.values())


def _agree(stated: Numbers, counted: Numbers) -> bool:
    return all(
        name in counted and abs(value - counted[name]) <= _SAME.get(name, _SAME_SHARE)
        for name, value in stated.items()
    )


def _said(names: Iterable[str], quoted: set[str]) -> list[str]:
    """Those of `names` that a sentence quotes; all of them where it quotes none."""
    names = list(names)
    return [name for name in names if _bare(name) in quoted] or names


def _bare(name: str) -> str:
    """A name as a sentence quotes it."""
    return name.replace("“", "").replace("”", "")


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
