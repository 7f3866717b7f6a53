"""Stage 10, insights: sentences about counted tables, each with its numbers and evidence.

No sentence states a figure that is not in its `numbers`, and every number is counted here from
where the rows went. Differences between groups and themes that come together are told only where
chance is a poor explanation (`comparing.py`). A model may word the sentences; it gets the tables
alone, and what it says beyond them is dropped for the sentence of the template.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

from app.pipelines.thematic.comparing import differences, pairs
from app.pipelines.thematic.counting import Tables, theme_id
from app.pipelines.thematic.label import Labels
from app.pipelines.thematic.load import Answers
from app.pipelines.thematic.quotes import Quotes
from app.results.facts import LEAST_JUDGED, z_of

EVIDENCE: Final = 3
LARGEST: Final = 3
MAX_DIFFERENCES: Final = 5
MAX_PAIRS: Final = 3


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
        unanswered: why the model worded none of them though it was there, None where it did.
    """

    insights: list[Sentence]
    dropped: int = 0
    lost: str | None = None
    unanswered: str | None = None


def insights(answers: Answers, counted: Tables, labels: Labels, chosen: Quotes) -> Insights:
    """Write the sentences by templates."""
    evidence = _Evidence(answers, counted, chosen)
    sentences = [
        *_largest(counted, labels, evidence),
        *_concentration(counted, labels, evidence),
        *_differences(answers, counted, labels, evidence),
        *_together(answers, counted, labels, evidence),
        *_stances(counted, labels, evidence),
        *_set_apart(answers, counted),
    ]
    return Insights(insights=sentences)


def sizes(answers: Answers, counted: Tables, labels: Labels, chosen: Quotes) -> list[Sentence]:
    """A sentence on the size of every theme, for a model to draw on."""
    evidence = _Evidence(answers, counted, chosen)
    return [
        _size(f"Theme {_quoted(labels.names[theme])}", theme, counted, evidence)
        for theme in counted.by_size
        if counted.responses[theme]
    ]


class _Evidence:
    """Ids of answers that a reader may look up, quoted ones first."""

    def __init__(self, answers: Answers, counted: Tables, chosen: Quotes) -> None:
        self._ids = answers.ids
        self._of_row = counted.of_row
        self._quoted = [[quote["response_id"] for quote in quotes] for quotes in chosen.themes]

    def on(self, themes: Iterable[int]) -> list[str]:
        """The first quotes of each theme."""
        return [answer for theme in themes for answer in self._quoted[theme][:EVIDENCE]]

    def among(self, themes: Sequence[int], rows: Iterable[int]) -> list[str]:
        """Those of `rows` that list all of `themes`: quotes, then the nearest to their theme."""
        score = {}
        for row in rows:
            each = self._of_row[row]
            if each is not None and set(themes) <= set(each.themes):
                score[self._ids[row]] = each.score or 0.0
        quoted = [answer for theme in themes for answer in self._quoted[theme] if answer in score]
        nearest = sorted(score, key=lambda answer: -score[answer])
        return list(dict.fromkeys(quoted + nearest))[:EVIDENCE]


def _insight(
    text: str,
    numbers: dict[str, int | float],
    themes: Sequence[int] = (),
    evidence: Iterable[str] = (),
) -> Sentence:
    return Sentence(
        text=text,
        source="template",
        theme_ids=[theme_id(theme) for theme in themes],
        evidence=list(dict.fromkeys(evidence)),
        numbers=numbers,
    )


_ONE_PERCENT: Final = 0.01


def percent(share: float) -> str:
    """A fraction as people read it, with a decimal only where it is below one percent."""
    return f"{100 * share:.1f} %" if 0 < share < _ONE_PERCENT else f"{100 * share:.0f} %"


def _size(lead: str, theme: int, counted: Tables, evidence: "_Evidence") -> Sentence:
    responses = counted.responses[theme]
    share = responses / counted.analysed
    return _insight(
        f"{lead}: {responses:,} of {counted.analysed:,} answers ({percent(share)}).",
        {"responses": responses, "analysed": counted.analysed, "share": share},
        [theme],
        evidence.on([theme]),
    )


def _largest(counted: Tables, labels: Labels, evidence: "_Evidence") -> Iterator[Sentence]:
    if not any(counted.responses):
        return
    theme, *others = counted.by_size
    is_alone = all(counted.responses[other] < counted.responses[theme] for other in others)
    lead = "The largest theme is" if is_alone else "One of the largest themes is"
    lead = f"{lead} {_quoted(labels.names[theme])}"
    yield _size(lead, theme, counted, evidence)


def _concentration(counted: Tables, labels: Labels, evidence: "_Evidence") -> Iterator[Sentence]:
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
        evidence.on(top),
    )


def _differences(
    answers: Answers, counted: Tables, labels: Labels, evidence: "_Evidence"
) -> Iterator[Sentence]:
    """Groups that speak of a theme clearly more often than all others, the clearest first."""
    for each in differences(answers, counted)[:MAX_DIFFERENCES]:
        of_group = answers.groups[each.column]
        yield _insight(
            f"{_quoted(labels.names[each.theme])} comes up more often where "
            f"{_quoted(each.column)} is {_quoted(each.group)}: "
            f"{percent(each.here / each.size)} ({each.here:,} of {each.size:,}) against "
            f"{percent(each.there / each.rest)} ({each.there:,} of {each.rest:,}) elsewhere.",
            {
                "responses": each.here,
                "group_size": each.size,
                "share": each.here / each.size,
                "responses_elsewhere": each.there,
                "size_elsewhere": each.rest,
                "share_elsewhere": each.there / each.rest,
                "z": round(each.z, 2),
            },
            [each.theme],
            evidence.among(
                [each.theme], [row for row, of in enumerate(of_group) if of == each.group]
            ),
        )


def _together(
    answers: Answers, counted: Tables, labels: Labels, evidence: "_Evidence"
) -> Iterator[Sentence]:
    """Themes that come up in one answer more often than by chance, the clearest first."""
    for pair in pairs(answers, counted)[:MAX_PAIRS]:
        first, second, times = pair.first, pair.second, pair.times
        size, other = counted.responses[first], counted.responses[second]
        rest = counted.analysed - size
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
                "z": round(z_of(times, size, other - times, rest), 2) if rest else 0.0,
            },
            [first, second],
            evidence.among([first, second], range(len(counted.of_row))),
        )


def _stances(counted: Tables, labels: Labels, evidence: "_Evidence") -> Iterator[Sentence]:
    """The theme with the largest share of complaint, and the one with the largest of praise."""
    rows: dict[tuple[int, str], list[int]] = defaultdict(list)
    known: Counter[int] = Counter()
    for row, each in enumerate(counted.of_row):
        for theme, said in zip(each.themes, each.stance, strict=False) if each is not None else ():
            if said:
                rows[theme, said].append(row)
                known[theme] += 1
    judged = [theme for theme in counted.by_size if known[theme] >= LEAST_JUDGED]
    for stance in ("negative", "positive") if judged else ():
        theme = max(judged, key=lambda theme: len(rows[theme, stance]) / known[theme])
        times, size = len(rows[theme, stance]), known[theme]
        if times:
            yield _insight(
                f"Of themes with at least {LEAST_JUDGED} judged answers, answers are most often "
                f"{stance} on {_quoted(labels.names[theme])}: {times:,} of {size:,} "
                f"({percent(times / size)}).",
                {
                    stance: times,
                    "judged": size,
                    "share": times / size,
                    "least_judged": LEAST_JUDGED,
                },
                [theme],
                evidence.among([theme], rows[theme, stance]),
            )


def _quoted(text: str) -> str:
    return f"“{text.replace('“', '').replace('”', '')}”"


def _set_apart(answers: Answers, counted: Tables) -> Iterator[Sentence]:
    rows = len(answers.texts)
    silent = rows - counted.analysed
    if silent:
        share = silent / rows
        do = "says nothing and was" if silent == 1 else "say nothing and were"
        yield _insight(
            f"{silent:,} of {rows:,} rows ({percent(share)}) {do} set apart.",
            {"non_answers": silent, "rows": rows, "share": share},
        )
    if counted.others:
        share = counted.others / counted.analysed
        do = "belongs" if counted.others == 1 else "belong"
        yield _insight(
            f"{counted.others:,} of {counted.analysed:,} answers ({percent(share)}) {do} to no "
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
