"""Stage 10, insights: sentences about counted tables, each with its numbers and evidence.

No sentence states a figure that is not in its `numbers`, and every number is counted here from
where the rows went. Differences between groups and themes that come together are told only where
chance is a poor explanation: a two-proportion z-test, Bonferroni-corrected for all that was looked
at. A model may word the sentences; it gets the tables alone, and what it says beyond them is
dropped for the sentence of the template.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist
from typing import Final, TypedDict

from app.pipelines.thematic.counting import Tables, theme_id
from app.pipelines.thematic.label import Labels
from app.pipelines.thematic.load import Answers
from app.pipelines.thematic.quotes import Quotes
from app.results.facts import z_of

EVIDENCE: Final = 3
LARGEST: Final = 3
MAX_DIFFERENCES: Final = 5
MAX_PAIRS: Final = 3
MIN_GROUP: Final = 30  # analysed answers; below, the z-test's normal approximation is poor
SIGNIFICANCE: Final = 0.01


class Sentence(TypedDict):
    """One sentence; `numbers` are the computed values that its figures come from.

    `evidence` are ids of answers. `app.results.facts` knows a fact's kind by the names of its
    numbers and counts it again: a new kind is to be told there too.
    """

    text: str
    source: str
    theme_ids: list[str]
    evidence: list[str]
    numbers: dict[str, int | float]


@dataclass(frozen=True, slots=True)
class Insights:
    """The sentences, the most general first.

    Attributes:
        dropped: sentences of the model that did not hold.
        lost: why the model was given up on the way, None where it was not.
    """

    insights: list[Sentence]
    dropped: int = 0
    lost: str | None = None


def insights(answers: Answers, counted: Tables, labels: Labels, chosen: Quotes) -> Insights:
    """Write the sentences by templates."""
    evidence = [[quote["response_id"] for quote in quotes[:EVIDENCE]] for quotes in chosen.themes]
    sentences = [
        *_largest(counted, labels, evidence),
        *_concentration(counted, labels, evidence),
        *_differences(answers, counted, labels, evidence),
        *_together(counted, labels, evidence),
        *_stances(counted, labels, evidence),
        *_set_apart(answers, counted),
    ]
    return Insights(insights=sentences)


def sizes(counted: Tables, labels: Labels, chosen: Quotes) -> list[Sentence]:
    """A sentence on the size of every theme, for a model to draw on."""
    evidence = [[quote["response_id"] for quote in quotes[:EVIDENCE]] for quotes in chosen.themes]
    return [
        _size(f"Theme {_quoted(labels.names[theme])}", theme, counted, evidence)
        for theme in counted.by_size
        if counted.responses[theme]
    ]


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
        evidence=list(dict.fromkeys(item for theme in themes for item in evidence[theme])),
        numbers=numbers,
    )


_ONE_PERCENT: Final = 0.01


def percent(share: float) -> str:
    """A fraction as people read it, with a decimal only where it is below one percent."""
    return f"{100 * share:.1f} %" if 0 < share < _ONE_PERCENT else f"{100 * share:.0f} %"


def _size(lead: str, theme: int, counted: Tables, evidence: list[list[str]]) -> Sentence:
    responses = counted.responses[theme]
    share = responses / counted.analysed
    return _insight(
        f"{lead}: {responses:,} of {counted.analysed:,} answers ({percent(share)}).",
        {"responses": responses, "analysed": counted.analysed, "share": share},
        [theme],
        evidence,
    )


def _largest(counted: Tables, labels: Labels, evidence: list[list[str]]) -> Iterator[Sentence]:
    if not any(counted.responses):
        return
    theme = counted.by_size[0]
    lead = f"The largest theme is {_quoted(labels.names[theme])}"
    yield _size(lead, theme, counted, evidence)


def _concentration(
    counted: Tables, labels: Labels, evidence: list[list[str]]
) -> Iterator[Sentence]:
    themes = sum(map(bool, counted.responses))
    if themes <= LARGEST:
        return
    top = counted.by_size[:LARGEST]
    responses = sum(
        1 for each in counted.of_row if each is not None and not set(top).isdisjoint(each.themes)
    )
    share = responses / counted.analysed
    names = ", ".join(_quoted(labels.names[theme]) for theme in top)
    yield _insight(
        f"The {LARGEST} largest of {themes} themes, {names}, hold "
        f"{percent(share)} of the answers ({responses:,} of {counted.analysed:,}).",
        {
            "largest": LARGEST,
            "themes": themes,
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
        for group, each in zip(groups, counted.of_row, strict=True):
            if each is not None and each.status != "non_answer":
                sizes[group] += 1
                hits.update((group, theme) for theme in each.themes)
        for group in sorted(sizes):
            rest = counted.analysed - sizes[group]
            if min(sizes[group], rest) < MIN_GROUP:
                continue
            for theme, responses in enumerate(counted.responses):
                looked_at += 1
                here, there = hits[group, theme], responses - hits[group, theme]
                z = z_of(here, sizes[group], there, rest)
                if z > 0:
                    found.append((-z, column, group, theme, here, sizes[group], there, rest))
    for minus_z, column, group, theme, here, size, there, rest in sorted(found)[:MAX_DIFFERENCES]:
        if -minus_z < _limit(looked_at):
            return
        yield _insight(
            f"{_quoted(labels.names[theme])} comes up more often where {_quoted(column)} is "
            f"{_quoted(group)}: {percent(here / size)} ({here:,} of {size:,}) against "
            f"{percent(there / rest)} ({there:,} of {rest:,}) elsewhere.",
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


def _together(counted: Tables, labels: Labels, evidence: list[list[str]]) -> Iterator[Sentence]:
    """Themes that come up in one answer more often than by chance, the clearest first."""
    both: Counter[tuple[int, int]] = Counter()
    for each in counted.of_row:
        if each is not None:
            both.update(combinations(sorted(each.themes), 2))
    found = []
    for (first, second), times in both.items():
        size, rest = counted.responses[first], counted.analysed - counted.responses[first]
        if min(size, rest) >= MIN_GROUP:
            z = z_of(times, size, counted.responses[second] - times, rest)
            found.append((-z, first, second, times))
    for minus_z, first, second, times in sorted(found)[:MAX_PAIRS]:
        if -minus_z < _limit(len(found)):
            return
        size, other = counted.responses[first], counted.responses[second]
        yield _insight(
            f"{_quoted(labels.names[first])} and {_quoted(labels.names[second])} come up together "
            f"in {times:,} answers: {percent(times / size)} of the {size:,} on the first and "
            f"{percent(times / other)} of the {other:,} on the second.",
            {
                "together": times,
                "responses_first": size,
                "share_first": times / size,
                "responses_second": other,
                "share_second": times / other,
                "z": round(-minus_z, 2),
            },
            [first, second],
            evidence,
        )


def _stances(counted: Tables, labels: Labels, evidence: list[list[str]]) -> Iterator[Sentence]:
    """The theme with the largest share of complaint, and the one with the largest of praise."""
    told: Counter[tuple[int, str]] = Counter()
    for each in counted.of_row:
        if each is not None:
            told.update(pair for pair in zip(each.themes, each.stance, strict=False) if pair[1])
    known: Counter[int] = Counter()
    for (theme, _), times in told.items():
        known[theme] += times
    judged = [theme for theme in counted.by_size if known[theme] >= MIN_GROUP]
    for stance in ("negative", "positive") if judged else ():
        theme = max(judged, key=lambda theme: told[theme, stance] / known[theme])
        times, size = told[theme, stance], known[theme]
        if times:
            yield _insight(
                f"Answers are most often {stance} on {_quoted(labels.names[theme])}: {times:,} of "
                f"{size:,} ({percent(times / size)}).",
                {stance: times, "judged": size, "share": times / size},
                [theme],
                evidence,
            )


def _quoted(text: str) -> str:
    return f"“{text.replace('“', '').replace('”', '')}”"


def _limit(looked_at: int) -> float:
    return NormalDist().inv_cdf(1.0 - SIGNIFICANCE / max(1, 2 * looked_at))


def _set_apart(answers: Answers, counted: Tables) -> Iterator[Sentence]:
    rows = len(answers.texts)
    silent = rows - counted.analysed
    if silent:
        share = silent / rows
        yield _insight(
            f"{silent:,} of {rows:,} rows ({percent(share)}) say nothing and were set apart.",
            {"non_answers": silent, "rows": rows, "share": share},
        )
    if counted.others:
        share = counted.others / counted.analysed
        yield _insight(
            f"{counted.others:,} of {counted.analysed:,} answers ({percent(share)}) belong to no "
            "theme that is large enough to be shown.",
            {"other": counted.others, "analysed": counted.analysed, "share": share},
        )
    if counted.failed:
        share = counted.failed / counted.analysed
        yield _insight(
            f"{counted.failed:,} of {counted.analysed:,} answers ({percent(share)}) could not be "
            "judged.",
            {"failed": counted.failed, "analysed": counted.analysed, "share": share},
        )
