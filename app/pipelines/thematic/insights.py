"""Stage 7, insights: sentences filled in from counted tables, each with its numbers and evidence.

No sentence states a figure that is not in its `numbers`, and every number is counted here from
where the rows went. Differences between groups are told only where chance is a poor explanation:
a two-proportion z-test, Bonferroni-corrected for all pairs looked at.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, TypedDict

from app.pipelines.thematic.discover import Discovered
from app.pipelines.thematic.label import Labels
from app.pipelines.thematic.load import Answers
from app.pipelines.thematic.prepare import Prepared
from app.pipelines.thematic.quotes import Quotes

EVIDENCE: Final = 3
LARGEST: Final = 3
MAX_DIFFERENCES: Final = 5
MIN_GROUP: Final = 30  # analysed answers; below, the z-test's normal approximation is poor
SIGNIFICANCE: Final = 0.01


class Sentence(TypedDict):
    """One sentence; `numbers` are the computed values that its figures come from.

    `evidence` are ids of answers.
    """

    text: str
    source: str
    theme_ids: list[str]
    evidence: list[str]
    numbers: dict[str, int | float]


@dataclass(frozen=True, slots=True)
class Insights:
    """The sentences, the most general first."""

    insights: list[Sentence]


@dataclass(frozen=True, slots=True)
class Tables:
    """What the sentences are filled from, counted per row.

    Attributes:
        theme_of_row: -1 for other, None for a non-answer.
        analysed: rows with an answer.
        responses: theme -> rows.
        others: rows in other.
    """

    theme_of_row: list[int | None]
    analysed: int
    responses: list[int]
    others: int


def tables(prepared: Prepared, found: Discovered) -> Tables:
    """Count where the rows went."""
    theme_of_row = [found.theme_of[text] if text >= 0 else None for text in prepared.text_of]
    counts = Counter(theme for theme in theme_of_row if theme is not None)
    return Tables(
        theme_of_row=theme_of_row,
        analysed=counts.total(),
        responses=[counts[theme] for theme in range(len(found.cohesion))],
        others=counts[-1],
    )


def theme_id(theme: int) -> str:
    """The id of the theme with this number: "T01" for 0."""
    return f"T{theme + 1:02d}"


def insights(
    answers: Answers, prepared: Prepared, found: Discovered, labels: Labels, chosen: Quotes
) -> Insights:
    """Write the sentences."""
    counted = tables(prepared, found)
    evidence = [[quote["response_id"] for quote in quotes[:EVIDENCE]] for quotes in chosen.themes]
    sentences = [
        *_largest(counted, labels, evidence),
        *_concentration(counted, labels, evidence),
        *_differences(answers, counted, labels, evidence),
        *_set_apart(answers, counted),
    ]
    return Insights(insights=sentences)


def _insight(
    text: str,
    numbers: dict[str, int | float],
    themes: Sequence[int] = (),
    evidence: Sequence[list[str]] = (),
) -> Sentence:
    return Sentence(
        text=text,
        source="template",
        theme_ids=[theme_id(theme) for theme in themes],
        evidence=[item for theme in themes for item in evidence[theme]],
        numbers=numbers,
    )


_ONE_PERCENT: Final = 0.01


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if 0 < share < _ONE_PERCENT else f"{100 * share:.0f} %"


def _largest(counted: Tables, labels: Labels, evidence: list[list[str]]) -> Iterator[Sentence]:
    if not counted.responses:
        return
    responses = counted.responses[0]
    share = responses / counted.analysed
    yield _insight(
        f"The largest theme is “{labels.names[0]}”: {responses:,} of {counted.analysed:,} answers "
        f"({_percent(share)}).",
        {"responses": responses, "analysed": counted.analysed, "share": share},
        [0],
        evidence,
    )


def _concentration(
    counted: Tables, labels: Labels, evidence: list[list[str]]
) -> Iterator[Sentence]:
    if len(counted.responses) <= LARGEST:
        return
    top = list(range(LARGEST))
    responses = sum(counted.responses[theme] for theme in top)
    share = responses / counted.analysed
    names = ", ".join(f"“{labels.names[theme]}”" for theme in top)
    yield _insight(
        f"The {LARGEST} largest of {len(counted.responses)} themes, {names}, hold "
        f"{_percent(share)} of the answers ({responses:,} of {counted.analysed:,}).",
        {
            "largest": LARGEST,
            "themes": len(counted.responses),
            "responses": responses,
            "analysed": counted.analysed,
            "share": share,
        },
        top,
        evidence,
    )


def _differences(
    answers: Answers, counted: Tables, labels: Labels, evidence: list[list[str]]
) -> Iterator[Sentence]:
    """Groups that speak of a theme clearly more often than all others, the clearest first."""
    found = []
    looked_at = 0
    for column, groups in answers.groups.items():
        sizes: Counter[str] = Counter()
        hits: Counter[tuple[str, int]] = Counter()
        for group, theme in zip(groups, counted.theme_of_row, strict=True):
            if theme is not None:
                sizes[group] += 1
                hits[group, theme] += 1
        for group in sorted(sizes):
            rest = counted.analysed - sizes[group]
            if min(sizes[group], rest) < MIN_GROUP:
                continue
            for theme, responses in enumerate(counted.responses):
                looked_at += 1
                here, there = hits[group, theme], responses - hits[group, theme]
                z = _z(here, sizes[group], there, rest)
                if z > 0:
                    found.append((-z, column, group, theme, here, sizes[group], there, rest))
    limit = NormalDist().inv_cdf(1.0 - SIGNIFICANCE / max(1, 2 * looked_at))
    for minus_z, column, group, theme, here, size, there, rest in sorted(found)[:MAX_DIFFERENCES]:
        if -minus_z < limit:
            return
        yield _insight(
            f"“{labels.names[theme]}” comes up more often where {_quoted(column)} is "
            f"{_quoted(group)}: {_percent(here / size)} ({here:,} of {size:,}) against "
            f"{_percent(there / rest)} ({there:,} of {rest:,}) elsewhere.",
            {
                "responses": here,
                "group_size": size,
                "share": here / size,
                "responses_elsewhere": there,
                "size_elsewhere": rest,
                "share_elsewhere": there / rest,
                "z": round(-minus_z, 2),
            },
            [theme],
            evidence,
        )


def _quoted(text: str) -> str:
    return f"“{text.replace('“', '').replace('”', '')}”"


def _z(here: int, size: int, there: int, rest: int) -> float:
    pooled = (here + there) / (size + rest)
    spread = math.sqrt(pooled * (1.0 - pooled) * (1.0 / size + 1.0 / rest))
    return (here / size - there / rest) / spread if spread else 0.0


def _set_apart(answers: Answers, counted: Tables) -> Iterator[Sentence]:
    rows = len(answers.texts)
    silent = rows - counted.analysed
    if silent:
        share = silent / rows
        yield _insight(
            f"{silent:,} of {rows:,} rows ({_percent(share)}) say nothing and were set apart.",
            {"non_answers": silent, "rows": rows, "share": share},
        )
    if counted.others:
        share = counted.others / counted.analysed
        yield _insight(
            f"{counted.others:,} of {counted.analysed:,} answers ({_percent(share)}) belong to no "
            "theme that is large enough to be shown.",
            {"other": counted.others, "analysed": counted.analysed, "share": share},
        )
