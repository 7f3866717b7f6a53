"""Stage 4, discover: sub-themes as communities of near texts, themes as joined sub-themes.

`max_themes` is an upper bound: sub-themes are joined as long as the modularity of the graph rises,
and further only where more themes than that would be left (docs/decisions.md has the figures).

Nothing is left out as noise: an answer belongs to a theme, or to "other" only where its theme
would have fewer people than `min_theme_size` or where it is like no other text at all.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.pipelines.thematic import graph, verdicts
from app.pipelines.thematic.embed import Embedded
from app.pipelines.thematic.milestones import Report
from app.pipelines.thematic.parameters import Parameters
from app.pipelines.thematic.people import People, as_people

NEIGHBOURS: Final = 15
SEEDS: Final = 10
RESOLUTION: Final = {"coarse": 1.5, "medium": 4.0, "fine": 8.0}
"""Of the sub-themes; the higher, the more of them."""

THEME_RESOLUTION: Final = {"coarse": 0.5, "medium": 1.0, "fine": 2.0}
"""1 is modularity as Newman and Girvan defined it: the number of themes comes from the data."""

STABILITY_RUNS: Final = 4
STABILITY_SHARE: Final = 0.8
STABILITY_FROM: Final = 50  # with fewer texts a subsample tells about luck only
SINGLE_THEME_BELOW: Final = 6  # unique texts; no graph of so few has communities worth a name


@dataclass(frozen=True, slots=True)
class Discovered:
    """Where each unique text belongs; themes and sub-themes are numbered by size.

    Attributes:
        theme_of: text -> theme, -1 for other.
        subtheme_of: text -> sub-theme, -1 where its theme is not divided or it is too small.
        parent_of: sub-theme -> theme.
        score: text -> cosine to its theme's centre, 0 for other.
        subscore: text -> cosine to its sub-theme's centre, 0 without one.
        cohesion: theme -> mean cosine of its texts to its centre.
        subcohesion: sub-theme -> the same.
        separation: theme -> mean simplified silhouette of its texts; empty with one theme.
        redundancy: highest cosine between two themes' centres, None with one theme.
        stability: mean adjusted Rand index of themes on subsamples, None with too few texts.
    """

    theme_of: list[int]
    subtheme_of: list[int]
    parent_of: list[int]
    score: list[float]
    subscore: list[float]
    cohesion: list[float]
    subcohesion: list[float]
    separation: list[float]
    redundancy: float | None
    stability: float | None


@dataclass(frozen=True, slots=True)
class Grain:
    """How fine the partition is: resolutions of the two levels, and the bound on themes."""

    subthemes: float
    themes: float
    at_most: int


async def discover(
    embedded: Embedded,
    people: Sequence[int],
    parameters: Parameters,
    report: Report,
    texts: Sequence[str] = (),
) -> Discovered:
    """Find the themes.

    Args:
        embedded: vectors of the unique texts.
        people: how many say each text; as `People`, which of them say several.
        parameters: `max_themes`, `min_theme_size`, `granularity` and `seed` matter here.
        report: told after each block of neighbours.
        texts: the unique texts, for those among them that are verdicts and nothing else: each
            kind of these is one sub-theme. Without them the vectors alone decide.
    """
    vectors = _unit(embedded.vectors.astype(np.float32))
    at_most = min(
        parameters.max_themes, max(1, as_people(people).total // parameters.min_theme_size)
    )
    if len(vectors) < SINGLE_THEME_BELOW or at_most == 1:
        alone = np.zeros(len(vectors), dtype=np.int64)
        return settle(vectors, alone, alone, people, 1)
    grain = Grain(
        RESOLUTION[parameters.granularity], THEME_RESOLUTION[parameters.granularity], at_most
    )
    seeds = [parameters.seed + offset for offset in range(SEEDS)]
    links = await _links(vectors, report)
    await report(0.6, "looking for themes")
    judged = await asyncio.to_thread(_verdicts, texts, len(vectors))
    fine, coarse = await asyncio.to_thread(_partition, links, vectors, judged, grain, seeds)
    found = await asyncio.to_thread(
        settle, vectors, coarse, fine, people, parameters.min_theme_size
    )
    if len(vectors) < STABILITY_FROM:
        return found
    await report(0.8, "checking the themes on subsamples")
    stability = await asyncio.to_thread(
        _stability, links, vectors, judged, coarse, grain, parameters.seed
    )
    return replace(found, stability=stability)


async def _links(vectors: NDArray[np.float32], report: Report) -> Any:
    k = neighbours(len(vectors))
    parts = []
    for start in range(0, len(vectors), graph.BLOCK):
        parts.append(await asyncio.to_thread(graph.nearest, vectors, start, k))
        done = min(start + graph.BLOCK, len(vectors))
        await report(0.6 * done / len(vectors), f"neighbours of {done:,} of {len(vectors):,} texts")
    return await asyncio.to_thread(graph.neighbour_graph, parts)


def neighbours(texts: int) -> int:
    """15; fewer for small surveys, where 15 would link every text with every theme."""
    return max(1, min(NEIGHBOURS, max(3, math.isqrt(texts)), texts - 1))


def _verdicts(texts: Sequence[str], size: int) -> NDArray[np.int64]:
    return np.array(
        [verdicts.verdict(text) for text in texts] or [verdicts.NONE] * size, dtype=np.int64
    )


def _partition(
    links: Any,
    vectors: NDArray[np.float32],
    judged: NDArray[np.int64],
    grain: Grain,
    seeds: Sequence[int],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Text -> sub-theme, and text -> theme, -1 where nothing is like it."""
    fine = graph.communities(links, grain.subthemes, seeds)
    first_verdict = fine.max() + 1
    for label, kind in enumerate((verdicts.PRAISE, verdicts.CRITICISM), first_verdict):
        fine = np.where(judged == kind, label, fine)
    found, fine = np.unique(fine, return_inverse=True)
    apart = np.flatnonzero(found >= first_verdict).tolist()
    return fine, graph.join(links, fine, vectors, grain.themes, grain.at_most, apart)[fine]


def settle(
    vectors: NDArray[np.float32],
    coarse: NDArray[np.int64],
    fine: NDArray[np.int64],
    people: Sequence[int],
    min_size: int,
) -> Discovered:
    """Small groups to other, the rest numbered by size, and how well each holds together."""
    everyone = as_people(people)
    theme_of = _by_size(coarse, everyone, min_size)
    subtheme_of = _by_size(np.where(theme_of >= 0, fine, -1), everyone, min_size, within=theme_of)
    parent_of = [int(theme_of[subtheme_of == sub][0]) for sub in range(subtheme_of.max() + 1)]
    score, cohesion, centres = _fit(vectors, theme_of)
    subscore, subcohesion, _ = _fit(vectors, subtheme_of)
    return Discovered(
        theme_of=theme_of.tolist(),
        subtheme_of=subtheme_of.tolist(),
        parent_of=parent_of,
        score=score,
        subscore=subscore,
        cohesion=cohesion,
        subcohesion=subcohesion,
        separation=_separation(vectors, theme_of, centres),
        redundancy=_redundancy(centres),
        stability=None,
    )


def _by_size(
    labels: NDArray[np.int64],
    people: People,
    min_size: int,
    within: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Labels renumbered by people, -1 below `min_size`; with `within`, by its groups first.

    A group that makes up the whole of what it lies within is no division and gets -1 as well.
    """
    ranked = []
    sizes = people.by_group(labels.tolist())
    for label in range(int(labels.max()) + 1):
        members = np.flatnonzero(labels == label)
        size = sizes[label]
        if not len(members) or size < min_size:
            continue
        outer = int(within[members[0]]) if within is not None else 0
        if within is not None and len(members) == int((within == outer).sum()):
            continue
        ranked.append((outer, -size, int(members[0]), members))
    renumbered = np.full(len(labels), -1, dtype=np.int64)
    for number, (*_, members) in enumerate(sorted(ranked, key=lambda entry: entry[:3])):
        renumbered[members] = number
    return renumbered


def _fit(
    vectors: NDArray[np.float32], labels: NDArray[np.int64]
) -> tuple[list[float], list[float], NDArray[np.float64]]:
    """Cosine of each text to its group's centre, its mean per group, and the unit centres."""
    groups = int(labels.max()) + 1
    centres = np.zeros((groups, vectors.shape[1]))
    score = np.zeros(len(labels))
    cohesion = []
    for group in range(groups):
        members = labels == group
        centres[group] = _unit(vectors[members].mean(axis=0, dtype=np.float64)[None, :])[0]
        score[members] = vectors[members] @ centres[group]
        cohesion.append(round(float(score[members].mean()), 4))
    return [round(float(value), 4) for value in score], cohesion, centres


def _separation(
    vectors: NDArray[np.float32], theme_of: NDArray[np.int64], centres: NDArray[np.float64]
) -> list[float]:
    """Mean over a theme's texts of (b - a) / max(a, b): distance to its own and the next centre."""
    if len(centres) < 2:  # noqa: PLR2004 - nothing to be apart from
        return []
    separation = []
    for theme in range(len(centres)):
        distance = 1.0 - vectors[theme_of == theme] @ centres.T
        own = distance[:, theme].copy()
        distance[:, theme] = np.inf
        nearest = distance.min(axis=1)
        silhouette = (nearest - own) / np.maximum(np.maximum(nearest, own), 1e-9)
        separation.append(round(float(silhouette.mean()), 4))
    return separation


def _redundancy(centres: NDArray[np.float64]) -> float | None:
    if len(centres) < 2:  # noqa: PLR2004 - no pair
        return None
    cosine = centres @ centres.T
    return round(max(float(cosine[i, j]) for i in range(len(centres)) for j in range(i)), 4)


def _stability(
    links: Any,
    vectors: NDArray[np.float32],
    judged: NDArray[np.int64],
    coarse: NDArray[np.int64],
    grain: Grain,
    seed: int,
) -> float:
    """How far the themes come back when a fifth of the texts is missing; 1 is exactly.

    The neighbours that are left are not searched anew: at 50,000 texts that would be most of the
    work of the whole analysis.
    """
    agreement = []
    for run in range(STABILITY_RUNS):
        draw = np.random.default_rng([seed, run])
        size = int(STABILITY_SHARE * len(coarse))
        chosen = np.sort(draw.choice(len(coarse), size=size, replace=False))
        part = links[chosen][:, chosen]
        _, again = _partition(part, vectors[chosen], judged[chosen], grain, [seed + run])
        agreement.append(graph.adjusted_rand(coarse[chosen] + 1, again + 1))
    return round(float(np.mean(agreement)), 4)


def _unit(vectors: Any) -> Any:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(length > 0, length, 1.0)
