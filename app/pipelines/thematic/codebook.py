"""A given codebook: its themes as the user wrote them, answers assigned by nearness.

An answer belongs to the code whose "name: definition" is nearest, and to a second one that is
hardly farther; below a least cosine it belongs to none of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.pipelines.thematic import discover
from app.pipelines.thematic.discover import Discovered
from app.pipelines.thematic.embed import Embedded
from app.pipelines.thematic.label import Labels, Lexicon
from app.pipelines.thematic.milestones import Report
from app.pipelines.thematic.parameters import Code, Parameters
from app.pipelines.thematic.people import as_people
from app.pipelines.thematic.prepare import Prepared

LEAST_COSINE: Final = 0.25
SECOND_WITHIN: Final = 0.1
SUGGESTIONS: Final = 5


def code_texts(codebook: Sequence[Code]) -> list[str]:
    """What is embedded for each code."""
    return [
        f"{code.name}: {code.definition}" if code.definition else code.name for code in codebook
    ]


def divide(embedded: Embedded, texts: int) -> tuple[Embedded, NDArray[np.float16]]:
    """The vectors of the answers, and those of the codes that were embedded after them."""
    return replace(embedded, vectors=embedded.vectors[:texts]), embedded.vectors[texts:]


def given(embedded: Embedded, codes: NDArray[np.float16]) -> Discovered:
    """The codes as themes, each answer in the nearest; themes keep the codebook's order."""
    cosine = embedded.vectors.astype(np.float32) @ codes.astype(np.float32).T
    nearest = cosine.argmax(axis=1)
    best = cosine[np.arange(len(cosine)), nearest]
    theme_of = np.where(best >= LEAST_COSINE, nearest, -1)
    own = [best[theme_of == theme] for theme in range(len(codes))]
    return Discovered(
        theme_of=theme_of.tolist(),
        subtheme_of=[-1] * len(theme_of),
        parent_of=[],
        score=[round(float(score), 4) for score in np.where(theme_of >= 0, best, 0.0)],
        subscore=[0.0] * len(theme_of),
        cohesion=[round(float(scores.mean()), 4) if len(scores) else 0.0 for scores in own],
        subcohesion=[],
        separation=[],
        redundancy=_redundancy(codes),
        stability=None,
    )


def _redundancy(codes: NDArray[np.float16]) -> float | None:
    if len(codes) < 2:  # noqa: PLR2004 - no pair
        return None
    cosine = codes.astype(np.float64) @ codes.astype(np.float64).T
    return round(float(cosine[np.triu_indices(len(codes), 1)].max()), 4)


def labels(
    prepared: Prepared, people: Sequence[int], found: Discovered, codebook: Sequence[Code]
) -> Labels:
    """The codebook's names and definitions, with the keywords of their answers."""
    lexicon = Lexicon(prepared.texts, people)
    ranked = lexicon.rank(found.theme_of, [0] * len(people))
    keywords = [lexicon.keywords(terms) for terms in ranked]
    keywords += [[]] * (len(codebook) - len(keywords))
    return Labels(
        names=[code.name for code in codebook],
        keywords=keywords,
        subnames=[],
        subkeywords=[],
        descriptions=[code.definition or None for code in codebook],
        sources=["codebook"] * len(codebook),
        subdescriptions=[],
        subsources=[],
    )


async def suggest(
    others: Sequence[int],
    texts: Sequence[str],
    embedded: Embedded,
    people: Sequence[int],
    parameters: Parameters,
    report: Report,
) -> list[list[int]]:
    """New themes that the answers in none of the codes suggest: groups of texts, largest first."""
    of_others = as_people(people).only(others)
    if of_others.total < parameters.min_theme_size:
        return []
    found = await discover.discover(
        replace(embedded, vectors=embedded.vectors[list(others)]),
        of_others,
        replace(parameters, max_themes=min(SUGGESTIONS, parameters.max_themes)),
        report,
        [texts[text] for text in others],
    )
    groups: list[list[int]] = [[] for _ in found.cohesion]
    for text, theme in zip(others, found.theme_of, strict=True):
        if theme >= 0:
            groups[theme].append(text)
    return groups


def suggested_names(
    prepared: Prepared, people: Sequence[int], groups: Sequence[Sequence[int]]
) -> list[tuple[str, list[str]]]:
    """Name and keywords of each suggested theme."""
    group_of = [-1] * len(people)
    for number, texts in enumerate(groups):
        for text in texts:
            group_of[text] = number
    lexicon = Lexicon(prepared.texts, people)
    ranked = lexicon.rank(group_of, [0] * len(people))
    return list(zip(lexicon.names(ranked), map(lexicon.keywords, ranked), strict=True))
