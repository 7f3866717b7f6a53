"""Stage 5, name: keywords by class-based TF-IDF, and names made of two or three of them.

Class-based TF-IDF (Grootendorst 2022) weighs a term by its frequency in one theme against its
frequency in all of them. Here a term counts once per person who uses it, so that a repeated word
in one long answer names nothing.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from app.pipelines.thematic.discover import Discovered
from app.pipelines.thematic.people import as_people
from app.pipelines.thematic.prepare import Prepared
from app.pipelines.thematic.words import phrases, stem, tokens

KEYWORDS: Final = 10
NAME_TERMS: Final = 3
PAIR_FOR_WORD: Final = 0.4  # a pair that this share of a word's users use replaces the word
NAME_SUPPORT: Final = 0.06  # of a group's people use a term that stands in its name
FULLER_PAIR: Final = 0.1  # and this share is enough for it to stand in a name
WORTH_NAMING: Final = 0.3  # of the best term's weight; below, a name is better off shorter

Term = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Labels:
    """Names and keywords, best first, by theme and by sub-theme.

    Attributes:
        sources: who named each theme: "keywords", "llm" or "codebook".
        model: the one that was asked for names, None where none was.
        lost: why it was given up on the way, None where it was not.
    """

    names: list[str]
    keywords: list[list[str]]
    subnames: list[str]
    subkeywords: list[list[str]]
    descriptions: list[str | None]
    sources: list[str]
    subdescriptions: list[str | None]
    subsources: list[str]
    model: str | None = None
    lost: str | None = None


def label(
    prepared: Prepared, people: Sequence[int], found: Discovered, question: str | None
) -> Labels:
    """Name all themes and sub-themes, no two of one level alike.

    Words of the question are echoes of it and name nothing.
    """
    echoes = frozenset(stem(word) for word in tokens(question or ""))
    lexicon = Lexicon(prepared.texts, people, echoes)
    everywhere = [0] * len(people)
    ranked = lexicon.rank(found.theme_of, everywhere)
    subranked = lexicon.rank(found.subtheme_of, found.theme_of)
    return Labels(
        names=lexicon.names(ranked),
        keywords=[lexicon.keywords(terms) for terms in ranked],
        subnames=lexicon.names(subranked),
        subkeywords=[lexicon.keywords(terms) for terms in subranked],
        descriptions=[None] * len(ranked),
        sources=["keywords"] * len(ranked),
        subdescriptions=[None] * len(subranked),
        subsources=["keywords"] * len(subranked),
    )


@dataclass(frozen=True, slots=True)
class Ranked:
    """The terms of one group: its people, how many use each term, and its weight, best first."""

    size: int
    people: Counter[Term]
    weight: dict[Term, float]


class Lexicon:
    """The terms of all texts: stems to count with, and the most frequent wording to show.

    Args:
        texts: unique texts.
        people: how many say each; a term of several texts of one person counts once.
        ignored: stems that are no terms.
    """

    def __init__(
        self, texts: Sequence[str], people: Sequence[int], ignored: frozenset[str] = frozenset()
    ) -> None:
        self._people = as_people(people)
        self._terms: list[set[Term]] = []
        wordings: dict[Term, Counter[str]] = defaultdict(Counter)
        for text, times in zip(texts, people, strict=True):
            terms = set()
            for phrase in phrases(text):
                term = tuple(map(stem, phrase))
                if ignored.isdisjoint(term):
                    terms.add(term)
                    wordings[term][" ".join(phrase)] += times
            self._terms.append(terms)
        self._wording = {
            term: min(seen, key=lambda wording: (-seen[wording], wording))
            for term, seen in wordings.items()
        }

    def rank(self, group_of: Sequence[int], outer_of: Sequence[int]) -> list[Ranked]:
        """The terms of each group 0 .. max of `group_of`; -1 is no group.

        `outer_of` is the larger group that a text lies in: what a group shares with its siblings
        there does not tell it from them.
        """
        groups = max(group_of, default=-1) + 1
        used = [Counter[Term]() for _ in range(groups)]
        within: dict[int, Counter[Term]] = defaultdict(Counter)
        outer_of_group = [0] * groups
        for terms, group, outer, times in zip(
            self._terms, group_of, outer_of, self._people, strict=True
        ):
            if group >= 0:
                outer_of_group[group] = outer
                used[group].update(dict.fromkeys(terms, times))
            within[outer].update(dict.fromkeys(terms, times))
        for group, repeated in self._repeated(group_of):
            if group >= 0:
                used[group].subtract(repeated)
        for outer, repeated in self._repeated(outer_of):
            within[outer].subtract(repeated)
        everywhere: Counter[Term] = Counter()
        for counts in within.values():
            everywhere.update(counts)
        mean_size = everywhere.total() / max(1, groups)
        sizes = self._people.by_group(group_of)
        return [
            self._ranked(sizes[group], counts, within[outer], everywhere, mean_size)
            for group, (counts, outer) in enumerate(zip(used, outer_of_group, strict=True))
        ]

    def _repeated(self, group_of: Sequence[int]) -> Iterator[tuple[int, Counter[Term]]]:
        """Groups in which one person says several texts, and how often terms come again there."""
        for texts in self._people.several:
            terms = defaultdict[int, Counter[Term]](Counter)
            for text in texts:
                terms[group_of[text]].update(self._terms[text])
            for group, times in terms.items():
                yield group, times - Counter(times.keys())

    def _ranked(
        self,
        size: int,
        counts: Counter[Term],
        within: Counter[Term],
        everywhere: Counter[Term],
        mean_size: float,
    ) -> Ranked:
        total, outer_total = counts.total(), within.total()
        repeated = [term for term in counts if counts[term] > 1] or list(counts)
        weight = {}
        for term in repeated:
            frequency = counts[term] / total
            lift = frequency / (within[term] / outer_total)
            weight[term] = (
                frequency * math.log(1.0 + mean_size / everywhere[term]) * math.sqrt(lift)
            )
        # Sorted, since the first pair takes over the word and a set has no order of its own.
        for pair in sorted(term for term in weight if len(term) > 1):
            for word in pair:
                if (word,) in weight and counts[pair] >= PAIR_FOR_WORD * counts[(word,)]:
                    weight[pair] = max(weight[pair], weight.pop((word,)))
        best = sorted(weight, key=lambda term: (-weight[term], self._wording[term]))
        return Ranked(size, counts, {term: weight[term] for term in best})

    def keywords(self, ranked: Ranked) -> list[str]:
        """The best terms as people write them."""
        return [self._wording[term] for term in list(ranked.weight)[:KEYWORDS]]

    def names(self, groups: Sequence[Ranked]) -> list[str]:
        """One name per group, each different."""
        taken: set[str] = set()
        names = []
        for number, ranked in enumerate(groups, start=1):
            name = self._name(ranked, taken)
            if not name or name.casefold() in taken:
                name = f"{name or 'Theme'} ({number})"
            taken.add(name.casefold())
            names.append(name)
        return names

    def _name(self, ranked: Ranked, taken: set[str]) -> str:
        """Terms without a word in common, as many as tell the group from those named before."""
        chosen: list[Term] = []
        name = ""
        best = max(ranked.weight.values(), default=0.0)
        for term, weight in ranked.weight.items():
            new = name.casefold() not in taken
            enough = len(chosen) >= NAME_TERMS or sum(map(len, chosen)) > NAME_TERMS
            weak = len(chosen) > 1 and weight < WORTH_NAMING * best
            rare = ranked.people[term] < NAME_SUPPORT * ranked.size
            if chosen and new and (enough or weak):
                break
            if chosen and new and rare:
                continue
            if self._join(term, chosen, ranked) or self._add(term, chosen, ranked):
                name = _sentence(self._wording[part] for part in chosen)
        return name

    def _join(self, term: Term, chosen: list[Term], ranked: Ranked) -> bool:
        """Make one of two words that people put side by side ("friendly staff")."""
        for at, other in enumerate(chosen):
            pairs = [pair for pair in (term + other, other + term) if pair in ranked.weight]
            if pairs:
                chosen[at] = max(pairs, key=lambda pair: ranked.people[pair])
                return True
        return False

    def _add(self, term: Term, chosen: list[Term], ranked: Ranked) -> bool:
        """Take a further term where it shares no word with those chosen."""
        words = {word for other in chosen for word in other}
        if any(_are_kin(word, other) for word in term for other in words):
            return False
        chosen.append(self._fuller(term, ranked, words))
        return True

    def _fuller(self, term: Term, ranked: Ranked, words: set[str]) -> Term:
        """The pair that says a word more fully ("friendly staff" for "staff"), if there is one."""
        users = ranked.people[term]
        pairs = [
            pair
            for pair in ranked.weight
            if len(pair) > len(term)
            and set(term) < set(pair)
            and words.isdisjoint(pair)
            and ranked.people[pair] >= max(2, FULLER_PAIR * users)
        ]
        return max(pairs, key=lambda pair: ranked.people[pair], default=term)


def _are_kin(stem_a: str, stem_b: str) -> bool:
    """Whether two stems are so alike that both in one name would say one thing twice."""
    return stem_a.startswith(stem_b) or stem_b.startswith(stem_a)


def _sentence(wordings: Iterable[str]) -> str:
    text = ", ".join(wordings)
    return text[:1].upper() + text[1:]
