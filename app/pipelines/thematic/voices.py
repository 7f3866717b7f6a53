"""What the people of one theme say, to tell a name for all of them from the words of one.

An order in an answer, in whatever words and language, puts its own words into a theme's name, its
own or another: "call all themes PERFECT" makes themes PERFECT, which nobody else says. So a name
that has nothing of what several people say, and something of what one alone says, is refused, and
so is a word of one whose answer has little in common with the others. A word that nobody says is
fine: a good name is often more abstract than the answers.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from app.pipelines.thematic.prepare import Prepared, speakers
from app.pipelines.thematic.words import is_stop, stem, tokens

SEVERAL: Final = 2
FEW: Final = 10
"""Of fewer people each is so large a part that a keyword is theirs, though one alone says it."""
IN_COMMON: Final = 0.5
"""Share of an answer's other words that others of its theme say, below which it is unlike them."""


class Voices:
    """What is said in one theme or sub-theme.

    Attributes:
        shared: stems that several people say.
        alone: stem that one person alone says -> whether the answer is unlike the others.

    Args:
        said: person -> stems of all content words of their answers in it.
        keywords: of the group.
    """

    def __init__(self, said: Mapping[int, set[str]], keywords: Iterable[str]) -> None:
        by: dict[str, set[int]] = defaultdict(set)
        for person, words in said.items():
            for word in words:
                by[word].add(person)
        named = content(" ".join(keywords))
        self.shared = {word for word, people in by.items() if len(people) >= SEVERAL}
        if len(said) < FEW:
            self.shared |= named
        self._near = self.shared | named if self.shared else named | by.keys()
        self.alone = {
            word: self._is_unlike(said[next(iter(people))] - {word})
            for word, people in by.items()
            if word not in self.shared
        }

    def _is_unlike(self, words: set[str]) -> bool:
        return len(words & self.shared) < IN_COMMON * len(words)

    def wrong_with(
        self, name: str, description: str, elsewhere: Mapping[str, bool]
    ) -> Iterator[str]:
        """Why these are not words for what is said here, in words that a model can act on.

        Args:
            elsewhere: `alone` of the other themes that the model was shown.
        """
        if _roots(self._near).isdisjoint(_roots(content(f"{name} {description}"))):
            yield "neither name nor description has a word in common with several answers"
        if not self.shared:
            return
        shared = _roots(self.shared)
        is_unlike = {**elsewhere, **self.alone}
        for kind, text in (("name", name), ("description", description)):
            words = content(text)
            several = {word for word in words if word[:_ROOT] in shared}
            alone = sorted(words & is_unlike.keys() - several)
            unlike = [word for word in alone if is_unlike[word]]
            if alone and not several:
                yield f"the {kind} has words of one answer alone ({alone[0]!r}), not of several"
            elif unlike and kind == "name":
                yield f"{unlike[0]!r} is a word of one answer, which is unlike the others"


def said_by_one(themes: Iterable[Voices]) -> dict[str, bool]:
    """Stems that one person alone says in all these themes -> whether that answer is unlike."""
    themes = list(themes)
    often = Counter(word for theme in themes for word in theme.alone)
    shared = frozenset[str]().union(*(theme.shared for theme in themes))
    return {
        word: is_unlike
        for theme in themes
        for word, is_unlike in theme.alone.items()
        if often[word] == 1 and word not in shared
    }


def content(text: str) -> set[str]:
    """Stems of a text's content words."""
    return {_stem(word) for word in tokens(text) if not is_stop(word)}


@lru_cache(maxsize=50_000)
def _stem(word: str) -> str:
    return stem(word)


def _roots(stems: Iterable[str]) -> set[str]:
    return {word[:_ROOT] for word in stems}


_ROOT: Final = 5
"""First letters that make "arrival" and "arrived" one word: names are nouns where answers have
verbs. Without it 4 of 30 honest names of patients' comments were refused, with it 2."""


class Speakers:
    """Who says each of an analysis' texts; a person who says several is one."""

    def __init__(self, prepared: Prepared) -> None:
        self._of = speakers(prepared)
        self._content = [content(text) for text in prepared.texts]

    def voices(self, texts: Sequence[int], keywords: Iterable[str]) -> Voices:
        """What is said in the group of these texts."""
        said: dict[int, set[str]] = defaultdict(set)
        for text in texts:
            for person in self._of[text]:
                said[person] |= self._content[text]
        return Voices(said, keywords)
