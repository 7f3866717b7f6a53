"""The format `themes/1`: what a thematic analysis returns, and what can be checked about it.

Counts in it are always counts of `assignments`; `verify` proves that for any result, and that
every quote is a slice of the answer it names. Standard library only: the API and the command line
read results without the libraries that made them.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

SCHEMA = "themes/1"
OTHER = "other"
"""`theme_id` of an answer that belongs to no theme."""
NON_ANSWER = "non_answer"
"""`theme_id` of a row that says nothing ("n/a", "-", an empty cell)."""


class Quote(TypedDict):
    """`text` is `answer[start:end]`, in code points of the answer as it was given."""

    response_id: str
    text: str
    start: int
    end: int
    verified: bool


class GroupCount(TypedDict):
    """Answers of one group in a theme; `share` is of the group's analysed answers."""

    responses: int
    share: float


class Theme(TypedDict):
    """A theme (`parent` null) or a sub-theme; `share` is of all analysed answers."""

    id: str
    parent: str | None
    name: str
    name_source: str
    description: str | None
    keywords: list[str]
    responses: int
    share: float
    unique_texts: int
    by_group: dict[str, dict[str, GroupCount]]
    cohesion: float
    separation: float | None
    quotes: list[Quote]


class Other(TypedDict):
    """Analysed answers without a theme; `sample` shows some of them."""

    responses: int
    share: float
    sample: list[Quote]


class NonAnswerText(TypedDict):
    """One wording of a non-answer, normalised, and how many rows have it."""

    text: str
    responses: int


class NonAnswers(TypedDict):
    """Rows that say nothing; `share` is of all rows, `rule` tells how they were found."""

    responses: int
    share: float
    rule: str
    texts: list[NonAnswerText]


class Evidence(TypedDict):
    """An answer that an insight rests on."""

    response_id: str


class Insight(TypedDict):
    """One sentence; `numbers` are the computed values that its figures come from."""

    text: str
    source: str
    theme_ids: list[str]
    evidence: list[Evidence]
    numbers: dict[str, float]
    numbers_checked: bool


class Assignment(TypedDict):
    """Where one row went; `score` is the cosine to its theme's centre, null without a theme."""

    response_id: str
    theme_id: str
    subtheme_id: str | None
    score: float | None


class Labelling(TypedDict):
    """Who named the themes; `degraded` where better naming was wished for than was possible."""

    method: str
    model: str | None
    degraded: bool
    reasons: list[str]


class CreatedBy(TypedDict):
    """What made the result."""

    pipeline: str
    version: str
    seed: int
    params_hash: str


class InputFacts(TypedDict):
    """What became of the rows: rows = analysed + non_answers; empty ones are non-answers too."""

    rows: int
    empty: int
    non_answers: int
    duplicates: int
    unique_texts: int
    too_long: int
    masked_emails: int
    masked_phones: int
    analysed: int


class Warn(TypedDict):
    """Something the reader of the result should know."""

    code: str
    text: str


class Usage(TypedDict):
    """What the run cost; the only part that differs between two runs on the same input."""

    llm_calls: int
    cached_calls: int
    prompt_tokens: int
    completion_tokens: int
    retries: int
    seconds_by_stage: dict[str, float]


class ThemesResult(TypedDict):
    """A whole result of schema `themes/1`."""

    schema: str
    question: str | None
    created_by: CreatedBy
    labelling: Labelling
    embedding: dict[str, Any]
    input: InputFacts
    themes: list[Theme]
    other: Other
    non_answers: NonAnswers
    insights: list[Insight]
    metrics: dict[str, float | None]
    usage: Usage
    warnings: list[Warn]
    assignments: list[Assignment]


@dataclass(frozen=True, slots=True)
class ThemeRow:
    """A line of the table that people read first."""

    name: str
    responses: int
    share: float
    quote: str


def theme_rows(result: ThemesResult) -> list[ThemeRow]:
    """The themes (not the sub-themes) in the result's order, then "Other" where it has answers."""
    rows = [
        ThemeRow(
            theme["name"],
            theme["responses"],
            theme["share"],
            theme["quotes"][0]["text"] if theme["quotes"] else "",
        )
        for theme in result["themes"]
        if theme["parent"] is None
    ]
    other = result["other"]
    if other["responses"]:
        quote = other["sample"][0]["text"] if other["sample"] else ""
        rows.append(ThemeRow("Other", other["responses"], other["share"], quote))
    return rows


def verify(result: ThemesResult, answers: Mapping[str, str]) -> list[str]:
    """What is wrong with `result`, one sentence each; empty for a sound one.

    Args:
        result: a result of schema `themes/1`.
        answers: response id -> the answer exactly as it was given.
    """
    return [
        *_assignment_problems(result, answers),
        *_count_problems(result),
        *_group_problems(result),
        *_share_problems(result),
        *_quote_problems(result, answers),
        *_insight_problems(result),
    ]


def _assignment_problems(result: ThemesResult, answers: Mapping[str, str]) -> Iterator[str]:
    parents = {theme["id"]: theme["parent"] for theme in result["themes"]}
    seen: Counter[str] = Counter(entry["response_id"] for entry in result["assignments"])
    for response_id, times in seen.items():
        if times > 1:
            yield f"answer {response_id!r} is assigned {times} times"
        if response_id not in answers:
            yield f"answer {response_id!r} is assigned but was not given"
    yield from (f"answer {lost!r} is not assigned" for lost in answers if lost not in seen)
    for entry in result["assignments"]:
        theme_id, subtheme_id = entry["theme_id"], entry["subtheme_id"]
        if theme_id not in (OTHER, NON_ANSWER) and parents.get(theme_id, "") is not None:
            yield f"answer {entry['response_id']!r} is assigned to {theme_id!r}, which is no theme"
        if subtheme_id is not None and parents.get(subtheme_id) != theme_id:
            yield f"answer {entry['response_id']!r}: {subtheme_id!r} is not within {theme_id!r}"


def _count_problems(result: ThemesResult) -> Iterator[str]:
    assigned: Counter[str] = Counter()
    for entry in result["assignments"]:
        assigned[entry["theme_id"]] += 1
        if entry["subtheme_id"] is not None:
            assigned[entry["subtheme_id"]] += 1
    facts = result["input"]
    stated = [
        (f"theme {theme['id']}", theme["responses"], theme["id"]) for theme in result["themes"]
    ]
    stated.append(("other", result["other"]["responses"], OTHER))
    stated.append(("non_answers", result["non_answers"]["responses"], NON_ANSWER))
    stated.append(("input.non_answers", facts["non_answers"], NON_ANSWER))
    for what, responses, theme_id in stated:
        if responses != assigned[theme_id]:
            yield f"{what} states {responses} answers, {assigned[theme_id]} are assigned"
    listed = sum(text["responses"] for text in result["non_answers"]["texts"])
    if listed != result["non_answers"]["responses"]:
        yield f"the listed non-answers add up to {listed}"
    if facts["rows"] != len(result["assignments"]):
        yield f"input.rows is {facts['rows']}, {len(result['assignments'])} rows are assigned"
    if facts["analysed"] != facts["rows"] - facts["non_answers"]:
        yield "input.analysed and input.non_answers do not add up to input.rows"


def _group_problems(result: ThemesResult) -> Iterator[str]:
    for theme in result["themes"]:
        for column, groups in theme["by_group"].items():
            total = sum(count["responses"] for count in groups.values())
            if total != theme["responses"]:
                yield f"theme {theme['id']}: groups of {column!r} add up to {total}"


def _share_problems(result: ThemesResult) -> Iterator[str]:
    analysed = result["input"]["analysed"]
    shares = {f"theme {theme['id']}": theme for theme in result["themes"]}
    for what, part in [*shares.items(), ("other", result["other"])]:
        expected = part["responses"] / analysed if analysed else 0.0
        if abs(part["share"] - expected) > _ROUNDING:
            yield f"{what} states a share of {part['share']}, it is {expected:.4f}"
    top = [theme["share"] for theme in result["themes"] if theme["parent"] is None]
    total = sum(top) + result["other"]["share"]
    if analysed and abs(total - 1) > _ROUNDING * (len(top) + 1):
        yield f"the shares of themes and other add up to {total:.4f}"


def _quote_problems(result: ThemesResult, answers: Mapping[str, str]) -> Iterator[str]:
    home = {
        entry["response_id"]: {entry["theme_id"], entry["subtheme_id"]}
        for entry in result["assignments"]
    }
    quoted = [(theme["id"], quote) for theme in result["themes"] for quote in theme["quotes"]]
    quoted += [(OTHER, quote) for quote in result["other"]["sample"]]
    for theme_id, quote in quoted:
        answer = answers.get(quote["response_id"])
        if answer is None or answer[quote["start"] : quote["end"]] != quote["text"]:
            yield f"{theme_id}: the quote of {quote['response_id']!r} is not verbatim"
        if not quote["text"].strip():
            yield f"{theme_id}: the quote of {quote['response_id']!r} is blank"
        if theme_id not in home.get(quote["response_id"], ()):
            yield f"{theme_id}: quoted answer {quote['response_id']!r} is assigned elsewhere"


def _insight_problems(result: ThemesResult) -> Iterator[str]:
    names = {theme["id"]: theme["name"] for theme in result["themes"]}
    known = {entry["response_id"] for entry in result["assignments"]}
    for number, insight in enumerate(result["insights"], start=1):
        plain = insight["text"]
        for theme_id in insight["theme_ids"]:
            if theme_id not in names:
                yield f"insight {number} names theme {theme_id!r}, which does not exist"
            plain = plain.replace(f"“{names.get(theme_id, '')}”", "")
        # What stands in quotation marks is a name or a group's label, its digits are no figures.
        plain = re.sub(r"“[^”]*”", "", plain)
        computed = {figure for value in insight["numbers"].values() for figure in _figures(value)}
        for figure in re.findall(r"\d[\d,]*(?:\.\d+)?", plain):
            if figure.rstrip(",").replace(",", "") not in computed:
                yield f"insight {number} states {figure}, which was not computed"
        if "analysed" in insight["numbers"] and insight["theme_ids"]:
            yield from _sum_problems(result, number, insight)
        for evidence in insight["evidence"]:
            if evidence["response_id"] not in known:
                yield f"insight {number} rests on {evidence['response_id']!r}, which was not given"


def _sum_problems(result: ThemesResult, number: int, insight: Insight) -> Iterator[str]:
    told = {theme["id"]: theme["responses"] for theme in result["themes"]}
    total = sum(told.get(theme_id, 0) for theme_id in insight["theme_ids"])
    if insight["numbers"].get("responses") != total:
        yield f"insight {number} counts {insight['numbers'].get('responses')}, not {total} answers"
    if insight["numbers"]["analysed"] != result["input"]["analysed"]:
        yield f"insight {number} is about {insight['numbers']['analysed']} answers"


def _figures(value: float) -> tuple[str, ...]:
    """How a computed value may be written: as a count, or a share as a percentage."""
    if isinstance(value, int):
        return (str(value),)
    return f"{100 * value:.0f}", f"{100 * value:.1f}"


_ROUNDING = 0.00011  # shares are rounded to four places
