"""Stage 5, name: what people say in each theme, named by the model in contrast to its neighbours.

A question shows about three themes with their sub-themes: central and diverse answers, keywords,
and answers of the nearest other themes. A name that says nothing, repeats another, states figures
or speaks of the task is refused, and so is one that says what one person alone says (`voices.py`);
where the model has no better one the keywords' name stays.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from app.pipelines.llm import AnswerRejectedError, LLMError
from app.pipelines.thematic.asker import Asks, reason
from app.pipelines.thematic.codes import is_no_theme
from app.pipelines.thematic.discover import Discovered
from app.pipelines.thematic.embed import Embedded
from app.pipelines.thematic.label import Labels
from app.pipelines.thematic.milestones import Report
from app.pipelines.thematic.prepare import Prepared, clean
from app.pipelines.thematic.prompts import Survey, bounded, exemplars, items, keyed, messages
from app.pipelines.thematic.quantities import quantities_of_people
from app.pipelines.thematic.voices import Speakers, Voices, content, said_by_one
from app.pipelines.thematic.words import is_stop, tokens

THEMES_PER_CALL: Final = 3
NAMES_PER_CALL: Final = 24
QUOTES: Final = 10
SUBTHEME_QUOTES: Final = 4
CONTRASTS: Final = 2
CONTRAST_QUOTES: Final = 3
NAME_CHARACTERS: Final = range(3, 61)
NAME_WORDS: Final = 8
DESCRIPTION_CHARACTERS: Final = range(10, 401)
DESCRIPTION_ASKED: Final = range(10, 241)

STOCK_WORDS: Final = frozenset(
    """
    answer answers aspect aspects category comment comments concern concerns experience experiences
    feedback general group issue issues matter matters miscellaneous mixed name negative neutral
    opinion opinions participant participants people point points positive problem problems quote
    quotes respondent respondents response responses statement statements subtheme survey text
    texts theme themes topic topics user users various view views
    """.split()  # noqa: SIM905 - a paragraph is read and mended more easily than a list
)
"""Stand in a name for any theme; a name of nothing else names none."""

_TASK: Final = (
    "Name every theme and sub-theme under `themes` and describe each in one sentence, by what its "
    "answers say. A name has two to six words, is concrete, tells the theme from those under "
    "`contrast` and from its siblings, and differs from all names in `taken`. Say what people "
    "talk about and not how many. Use no figures and no words such as most or many. Give one entry "
    "per id, all ids and no others."
)
_MARKUP: Final = re.compile(r"[{}<>\[\]`\\|\x00-\x1f\x7f\ufffd]|https?:|\bT\d{2}(\.\d+)?\b")
_FIGURE: Final = re.compile(r"\d+(?:[.,:]\d+)*")
_LEAK: Final = re.compile(
    r"\b(json|schema|keywords?|quotes?|sub-?themes?|as an ai|language model|assistant|sorry"
    r"|system prompt|(previous|above|these|following) instructions?|ignore|i cannot|i can't)\b",
    re.IGNORECASE,
)
"""Words of the task; in a name they are fine where the answers themselves use them."""


class Name(BaseModel):
    """What the model says of one theme or sub-theme."""

    model_config = ConfigDict(extra="forbid")

    name: str = bounded(NAME_CHARACTERS)
    description: str = bounded(DESCRIPTION_ASKED)


@dataclass(frozen=True, slots=True)
class _Shown:
    """One theme as the model sees it.

    Attributes:
        voices: what is said in the theme and in each of its sub-themes.
    """

    theme: int
    subthemes: list[int]
    document: dict[str, Any]
    voices: list[Voices]

    @property
    def ids(self) -> list[str]:
        return [self.document["id"], *(sub["id"] for sub in self.document["subthemes"])]

    def texts(self) -> Iterator[str]:
        """Keywords and quotes of the theme and of its sub-themes."""
        for group in (self.document, *self.document["subthemes"]):
            yield from group["keywords"]
            yield from group["quotes"]

    def all_texts(self) -> Iterator[str]:
        """Those and the quotes of other themes."""
        yield from self.texts()
        yield from chain.from_iterable(self.document["contrast"])


async def name(
    asks: Asks,
    prepared: Prepared,
    embedded: Embedded,
    found: Discovered,
    labels: Labels,
    survey: Survey,
    report: Report,
) -> Labels:
    """The labels with the model's names and descriptions where it gave any that hold.

    One question after the other, since each is told the names that are taken.
    """
    namer = await asyncio.to_thread(_Namer, asks, prepared, embedded, found, labels, survey)
    parts = _parts(namer.shown)
    try:
        for at, part in enumerate(parts):
            await report(at / len(parts), f"asking for names, {at + 1} of {len(parts)}")
            await namer.name(part)
    except LLMError as error:
        return replace(namer.labels(), lost=reason(error))
    return namer.labels()


def _parts(shown: Sequence[_Shown]) -> list[list[_Shown]]:
    parts: list[list[_Shown]] = []
    names = 0
    for each in shown:
        names += len(each.ids)
        if not parts or len(parts[-1]) == THEMES_PER_CALL or names > NAMES_PER_CALL:
            parts.append([])
            names = len(each.ids)
        parts[-1].append(each)
    return parts


class _Namer:
    def __init__(
        self,
        asks: Asks,
        prepared: Prepared,
        embedded: Embedded,
        found: Discovered,
        labels: Labels,
        survey: Survey,
    ) -> None:
        self._asks = asks
        self._survey = survey
        self._labels = labels
        self._names: dict[int, Name] = {}
        self._subnames: dict[int, Name] = {}
        self._held: dict[str, Name] = {}
        self.shown = _shown(prepared, embedded.vectors, found, labels)
        self._by_one = said_by_one(each.voices[0] for each in self.shown)

    async def name(self, part: list[_Shown]) -> None:
        """Name these themes.

        Of an answer that is refused the entries that hold are kept. The other themes are asked
        about again in halves, at last each alone without its sub-themes: a small model can name
        one thing where it cannot name five.
        """
        try:
            await self._ask(part)
        except AnswerRejectedError:
            self._keep(part)
            left = [each for each in part if each.theme not in self._names]
            if len(part) > 1:
                middle = len(left) // 2
                for half in filter(None, (left[:middle], left[middle:])):
                    await self.name(half)
            elif left and left[0].subthemes:
                document = {**left[0].document, "subthemes": []}
                await self.name([_Shown(left[0].theme, [], document, left[0].voices[:1])])
        else:
            self._keep(part)

    async def _ask(self, part: list[_Shown]) -> None:
        self._held = {}
        ids = [identity for each in part for identity in each.ids]
        taken = sorted(given.name for given in (*self._names.values(), *self._subnames.values()))
        document = {
            **self._survey.facts(),
            "taken": taken,
            "themes": [each.document for each in part],
        }
        answer_form = keyed("Names", Name, ids)
        question = messages(_TASK, **document)
        await self._asks.ask("name", question, answer_form, self._check(part))

    def _keep(self, part: list[_Shown]) -> None:
        for each in part:
            top, *subs = each.ids
            if top in self._held:
                self._names[each.theme] = self._held[top]
            for subtheme, identity in zip(each.subthemes, subs, strict=True):
                if identity in self._held:
                    self._subnames[subtheme] = self._held[identity]

    def _check(self, part: list[_Shown]) -> Callable[[BaseModel], list[str]]:
        """What is wrong with the names of an answer, each by its id; what is right is held."""
        tops = {each.ids[0] for each in part}
        voices = {key: of for each in part for key, of in zip(each.ids, each.voices, strict=True)}
        said = " ".join(text for each in part for text in each.texts()).casefold()
        seen = content(" ".join(chain.from_iterable(map(_Shown.all_texts, part))))
        by_one = {word: unlike for word, unlike in self._by_one.items() if word in seen}
        # What it has been named itself so far is not taken.
        own = {subtheme for each in part for subtheme in each.subthemes}
        before = {
            True: {each.name.casefold() for each in self._names.values()},
            False: {each.name.casefold() for sub, each in self._subnames.items() if sub not in own},
        }

        def check(answer: BaseModel) -> list[str]:
            self._held = {}
            taken = {level: set(names) for level, names in before.items()}
            problems = []
            for identity, item in items(answer).items():
                entry = _tidied(item)
                wrong = list(wrong_with(entry, said))
                wrong += voices[identity].wrong_with(entry.name, entry.description, by_one)
                level = taken[identity in tops]
                if entry.name.casefold() in level:
                    wrong.append(f"the name {entry.name!r} is taken")
                problems += [f"{identity}: {what}" for what in wrong]
                if not wrong:
                    level.add(entry.name.casefold())
                    self._held[identity] = entry
            return problems

        return check

    def labels(self) -> Labels:
        """The keywords' labels with what the model has named so far."""
        labels = self._labels
        names, descriptions, sources = _merged(labels.names, self._names)
        subnames, subdescriptions, subsources = _merged(labels.subnames, self._subnames)
        return replace(
            labels,
            names=names,
            descriptions=descriptions,
            sources=sources,
            subnames=subnames,
            subdescriptions=subdescriptions,
            subsources=subsources,
        )


def wrong_with(entry: Name, said: str) -> Iterator[str]:
    """What keeps an entry from naming its theme, in words that the model can act on.

    Args:
        said: all that the model was shown of the answers, case folded.
    """
    if len(entry.name) not in NAME_CHARACTERS or len(entry.name.split()) > NAME_WORDS:
        yield f"the name has to have 3 to 60 characters and at most {NAME_WORDS} words"
    if len(entry.description) not in DESCRIPTION_CHARACTERS:
        yield "the description has to have 10 to 400 characters"
    if is_no_theme(entry.name):
        yield f"{entry.name!r} is what answers without a theme are called"
    if is_stock(entry.name):
        yield f"the name {entry.name!r} says nothing about this theme"
    text = f"{entry.name} {entry.description}"
    leaks = [match.group() for match in _LEAK.finditer(text)]
    strange = [leak for leak in leaks if leak.casefold() not in said]
    strange += [match.group() for match in _MARKUP.finditer(text)]
    if strange:
        yield f"{strange[0]!r} belongs to the task, not to the answers"
    known = set(_FIGURE.findall(said))
    for figure in _FIGURE.findall(_MARKUP.sub("", text)):
        if figure not in known:
            yield f"the figure {figure} is in no answer"
    for quantity in quantities_of_people(text):
        yield f"say what people talk about and not how many: leave out {quantity!r}"


def is_stock(name: str) -> bool:
    """Whether a name would fit any theme."""
    return all(is_stop(word) or word in STOCK_WORDS or word.isdigit() for word in tokens(name))


def _tidied(item: Name) -> Name:
    return Name(
        name=clean(item.name).strip(" .\"'“”"),
        description=clean(item.description),
    )


def _merged(
    by_keywords: list[str], given: dict[int, Name]
) -> tuple[list[str], list[str | None], list[str]]:
    """Names, descriptions and sources; a keywords' name gives way where the model took it."""
    taken = {item.name.casefold() for item in given.values()}
    names: list[str] = []
    descriptions: list[str | None] = []
    sources = []
    for number, keywords_name in enumerate(by_keywords):
        item = given.get(number)
        names.append(item.name if item is not None else untaken(keywords_name, taken, number + 1))
        descriptions.append(item.description if item is not None else None)
        sources.append("llm" if item is not None else "keywords")
    return names, descriptions, sources


def untaken(name: str, taken: set[str], number: int) -> str:
    """The name, with a number from `number` on where it is taken; `taken` knows it from then on.

    What answers without a theme are called is always taken.
    """
    numbered = (f"{name} ({each})" for each in count(number))
    names = chain([] if is_no_theme(name) else [name], numbered)
    free = next(each for each in names if each.casefold() not in taken)
    taken.add(free.casefold())
    return free


def _shown(
    prepared: Prepared, vectors: NDArray[np.float16], found: Discovered, labels: Labels
) -> list[_Shown]:
    texts, speakers = prepared.texts, Speakers(prepared)
    themes = len(found.cohesion)
    members = [[t for t, of in enumerate(found.theme_of) if of == theme] for theme in range(themes)]
    nearest = nearest_themes(vectors, members)
    shown = []
    for theme in range(themes):
        subthemes = [sub for sub, parent in enumerate(found.parent_of) if parent == theme]
        parts = [[t for t in members[theme] if found.subtheme_of[t] == sub] for sub in subthemes]
        top = f"T{theme + 1:02d}"
        document = {
            "id": top,
            "keywords": labels.keywords[theme],
            "quotes": exemplars(members[theme], found.score, vectors, texts, QUOTES),
            "contrast": [
                exemplars(members[other], found.score, vectors, texts, CONTRAST_QUOTES)
                for other in nearest[theme][:CONTRASTS]
            ],
            "subthemes": [
                {
                    "id": f"{top}.{at}",
                    "keywords": labels.subkeywords[sub][:5],
                    "quotes": exemplars(
                        part,
                        found.subscore,
                        vectors,
                        texts,
                        SUBTHEME_QUOTES,
                    ),
                }
                for at, (sub, part) in enumerate(zip(subthemes, parts, strict=True), start=1)
            ],
        }
        voices = [
            speakers.voices(members[theme], labels.keywords[theme]),
            *(
                speakers.voices(part, labels.subkeywords[sub])
                for sub, part in zip(subthemes, parts, strict=True)
            ),
        ]
        shown.append(_Shown(theme, subthemes, document, voices))
    return shown


def nearest_themes(vectors: NDArray[np.float16], members: Sequence[list[int]]) -> list[list[int]]:
    """Theme -> the other themes, the nearest first."""
    cosine = centres(vectors, members) @ centres(vectors, members).T
    return [
        [int(other) for other in np.argsort(-row, kind="stable") if other != theme]
        for theme, row in enumerate(cosine)
    ]


def centres(vectors: NDArray[np.float16], members: Sequence[list[int]]) -> NDArray[np.float64]:
    """The unit centre of each group of texts; zero for an empty one."""
    found = np.zeros((len(members), vectors.shape[1]))
    for group, texts in enumerate(members):
        if texts:
            mean = vectors[texts].mean(axis=0, dtype=np.float64)
            found[group] = mean / max(float(np.linalg.norm(mean)), 1e-12)
    return found
