"""Stage 6, review: the model looks at all names at once; the vectors have the last word.

It may say that themes are doubles, that a theme mixes what should be apart, or that a name is
vague. Doubles are joined only where their centres are near, a theme is divided only into the
sub-themes that it has, and what the suggestions name wrongly is ignored and counted.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from app.pipelines.llm import AnswerRejectedError, LLMError
from app.pipelines.thematic import discover
from app.pipelines.thematic.asker import Asks, reason
from app.pipelines.thematic.discover import Discovered
from app.pipelines.thematic.embed import Embedded
from app.pipelines.thematic.label import Labels, label
from app.pipelines.thematic.name import centres, untaken
from app.pipelines.thematic.parameters import Parameters
from app.pipelines.thematic.prepare import Prepared
from app.pipelines.thematic.prompts import Survey, bounded, messages

DOUBLES: Final = 0.6
"""Least cosine of two centres that may be doubles: of real surveys' pairs a quarter is nearer."""

_TASK: Final = (
    "Review the themes of a survey. Under `merge` list groups of ids of themes that say the same "
    "thing. Under `split` list ids of themes whose sub-themes contradict each other, such as "
    "praise and complaint in one. Under `vague` list ids of themes whose names do not tell what "
    "people say. Leave a list empty where nothing is wrong; most themes need no change."
)


MOST_SUGGESTIONS: Final = 25
_Id = Annotated[str, bounded(range(1, 9))]
_Ids = Annotated[list[_Id], bounded(items=MOST_SUGGESTIONS)]


class _Suggestions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    merge: list[_Ids] = bounded(items=MOST_SUGGESTIONS)
    split: _Ids
    vague: _Ids


@dataclass(frozen=True, slots=True)
class Reviewed:
    """The themes after the review.

    Attributes:
        merged_from: theme -> names of the themes that were joined in it; empty for most.
        vague: themes whose names the model finds vague.
        applied: suggestions that changed something.
        ignored: suggestions about unknown themes, or against what the vectors say.
        rejected: whether there was no answer that could be read.
        lost: why the model was given up on the way, None where it was not.
    """

    found: Discovered
    labels: Labels
    merged_from: list[list[str]]
    vague: list[int]
    applied: int = 0
    ignored: int = 0
    rejected: bool = False
    lost: str | None = None


def unreviewed(found: Discovered, labels: Labels) -> Reviewed:
    """The themes as they are."""
    return Reviewed(found, labels, [[] for _ in labels.names], [])


async def review(
    asks: Asks,
    prepared: Prepared,
    people: list[int],
    embedded: Embedded,
    found: Discovered,
    labels: Labels,
    survey: Survey,
    parameters: Parameters,
) -> Reviewed:
    """Ask once about all themes and apply what agrees with the vectors."""
    as_it_was = unreviewed(found, labels)
    if len(labels.names) < 2:  # noqa: PLR2004 - nothing to compare
        return as_it_was
    themes = _shuffled(found, labels, parameters.seed)
    try:
        suggestions = await asks.ask(
            "review", messages(_TASK, **survey.facts(), themes=themes), _Suggestions
        )
    except AnswerRejectedError:
        return replace(as_it_was, rejected=True)
    except LLMError as error:
        return replace(as_it_was, lost=reason(error))
    return _Structure(embedded.vectors, found, labels, parameters).reviewed(
        suggestions, prepared, people, survey
    )


def _shuffled(found: Discovered, labels: Labels, seed: int) -> list[dict[str, object]]:
    """By no order that the model could take for a ranking, and the same with every run."""
    themes: list[dict[str, object]] = [
        {
            "id": _id(theme),
            "name": name,
            "description": labels.descriptions[theme] or ", ".join(labels.keywords[theme][:5]),
            "subthemes": [
                labels.subnames[sub] for sub, of in enumerate(found.parent_of) if of == theme
            ],
        }
        for theme, name in enumerate(labels.names)
    ]
    random.Random(seed).shuffle(themes)  # noqa: S311 - an order, not a secret
    return themes


def _id(theme: int) -> str:
    return f"T{theme + 1:02d}"


class _Structure:
    """The themes as groups of texts that can be joined and divided."""

    def __init__(
        self,
        vectors: NDArray[np.float16],
        found: Discovered,
        labels: Labels,
        parameters: Parameters,
    ) -> None:
        self._vectors = vectors
        self._found = found
        self._labels = labels
        self._parameters = parameters
        self._number = {_id(theme): theme for theme in range(len(labels.names))}
        self._into = list(range(len(labels.names)))
        self._divided: set[int] = set()
        members = [
            [text for text, of in enumerate(found.theme_of) if of == theme]
            for theme in range(len(labels.names))
        ]
        middle = centres(vectors, members)
        self._cosine = middle @ middle.T

    def reviewed(
        self, suggestions: _Suggestions, prepared: Prepared, people: list[int], survey: Survey
    ) -> Reviewed:
        done = [self._join(group) for group in suggestions.merge]
        done += [self._divide(theme) for theme in suggestions.split]
        known = sorted({self._number[each] for each in suggestions.vague if each in self._number})
        ignored = done.count(False) + sum(each not in self._number for each in suggestions.vague)
        if not any(done):
            merged_from: list[list[str]] = [[] for _ in self._labels.names]
            return Reviewed(self._found, self._labels, merged_from, known, 0, ignored)
        changed = self._changed(prepared, people, survey, known)
        return replace(changed, applied=done.count(True), ignored=ignored)

    def _join(self, group: Sequence[str]) -> bool:
        """Join doubles that are all near each other; whether that was possible."""
        themes = sorted({self._number.get(each, -1) for each in group})
        if len(themes) < 2 or themes[0] < 0:  # noqa: PLR2004 - one theme is no double
            return False
        whole = [
            at for at, into in enumerate(self._into) if into in {self._into[t] for t in themes}
        ]
        if any(self._cosine[first, second] < DOUBLES for first, second in combinations(whole, 2)):
            return False
        for theme in whole:
            self._into[theme] = whole[0]
        return True

    def _divide(self, identity: str) -> bool:
        """Divide a theme into its sub-themes where there is room for them."""
        theme = self._number.get(identity, -1)
        parts = self._found.parent_of.count(theme)
        is_joined = theme >= 0 and self._into.count(self._into[theme]) > 1
        if parts < 2 or is_joined or theme in self._divided:  # noqa: PLR2004 - as above
            return False
        now = len(set(self._into)) - len(self._divided) + self._divided_parts()
        if now - 1 + parts > self._parameters.max_themes:
            return False
        self._divided.add(theme)
        return True

    def _divided_parts(self) -> int:
        return sum(parent in self._divided for parent in self._found.parent_of)

    def _changed(
        self, prepared: Prepared, people: list[int], survey: Survey, vague: list[int]
    ) -> Reviewed:
        """The new themes, with the names that they had as themes or sub-themes."""
        labels = self._labels
        themes, subthemes = len(labels.names), len(labels.subnames)
        coarse, fine = self._groups()
        found = replace(
            discover.settle(self._unit(), coarse, fine, people, self._parameters.min_theme_size),
            stability=self._found.stability,
        )
        kept = _origins(found.theme_of, coarse)
        subkept = _origins(found.subtheme_of, fine)
        by_keywords = label(prepared, people, found, survey.question)
        tops = [_entry(labels, at, at - themes) for at in kept]
        subs = [_entry(labels, at - subthemes, at if at < subthemes else -1) for at in subkept]
        return Reviewed(
            found=found,
            labels=replace(
                by_keywords,
                names=_apart([each[0] for each in tops]),
                descriptions=[each[1] for each in tops],
                sources=[each[2] for each in tops],
                subnames=_apart([each[0] for each in subs]),
                subdescriptions=[each[1] for each in subs],
                subsources=[each[2] for each in subs],
                model=labels.model,
                lost=labels.lost,
            ),
            merged_from=[
                [labels.names[each] for each, into in enumerate(self._into) if into == theme]
                if self._into.count(theme) > 1
                else []
                for theme in kept
            ],
            vague=[at for at, theme in enumerate(kept) if theme in vague],
        )

    def _unit(self) -> NDArray[np.float32]:
        vectors = self._vectors.astype(np.float32)
        length = np.linalg.norm(vectors, axis=1, keepdims=True)
        return (vectors / np.where(length > 0, length, 1.0)).astype(np.float32)

    def _groups(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Text -> theme and sub-theme: old numbers, past them what has changed its level."""
        themes, subthemes = len(self._labels.names), len(self._labels.subnames)
        fine = np.array(self._found.subtheme_of, dtype=np.int64)
        old = np.array(self._found.theme_of, dtype=np.int64)
        coarse = np.where(old >= 0, np.array(self._into, dtype=np.int64)[old], -1)
        for theme, into in enumerate(self._into):
            if self._into.count(into) > 1 and theme not in self._found.parent_of:
                fine[old == theme] = subthemes + theme
        for theme in sorted(self._divided):
            inside = np.flatnonzero(old == theme)
            parts = [sub for sub, parent in enumerate(self._found.parent_of) if parent == theme]
            middle = centres(self._vectors, [np.flatnonzero(fine == sub).tolist() for sub in parts])
            nearest = (self._vectors[inside].astype(np.float64) @ middle.T).argmax(axis=1)
            placed = np.where(fine[inside] >= 0, fine[inside], np.array(parts)[nearest])
            coarse[inside] = themes + placed
            fine[inside] = -1
        return coarse, fine


def _origins(group_of: Sequence[int], before: NDArray[np.int64]) -> list[int]:
    """New group -> the number that its texts had before."""
    origin: dict[int, int] = {}
    for text, group in enumerate(group_of):
        if group >= 0:
            origin.setdefault(group, int(before[text]))
    return [origin[group] for group in range(len(origin))]


def _entry(labels: Labels, theme: int, subtheme: int) -> tuple[str, str | None, str]:
    """Name, description and source of a theme, or of a sub-theme where there is one."""
    if subtheme >= 0:
        subs = (labels.subnames, labels.subdescriptions, labels.subsources)
        return subs[0][subtheme], subs[1][subtheme], subs[2][subtheme]
    return labels.names[theme], labels.descriptions[theme], labels.sources[theme]


def _apart(names: Iterable[str]) -> list[str]:
    """The names, each different."""
    taken: set[str] = set()
    return [untaken(name, taken, number) for number, name in enumerate(names, start=1)]
