"""Whether a result of the format `themes/1` is sound: counts, shares, quotes and figures proved.

Everything is compared with the assignments and with the answers as they were given; what a model
or a program says about itself is never taken for true.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from app.results.facts import STANCES, Recount
from app.results.groups import Groups, Sizes, group_problems, group_sizes
from app.results.numerals import NUMBER_WORD, ROMAN
from app.results.themes import ROUNDING, Assignment, Quote, ThemesResult
from app.results.wordings import wording_problems

_METHODS: Final = ("cluster", "similarity", "llm", "codebook")
_COUNTED: Final = ("llm_calls", "cached_calls", "prompt_tokens", "completion_tokens", "retries")
# With what stands at it: 12k, -12 and 1,2 are not 12.
_FIGURE: Final = re.compile(
    r"([-\u2212]?\d[\d,]*(?:\.\d+)?\w*)(\s*(?:[%٪\uff05]|per\s?cent\b))?", re.IGNORECASE
)
_PLAIN: Final = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")


def verify(
    result: ThemesResult, answers: Mapping[str, str], groups: Groups | None = None
) -> list[str]:
    """What is wrong with `result`, one sentence each; empty for a sound one.

    Args:
        result: of schema `themes/1`.
        answers: response id -> the answer exactly as it was given.
        groups: by each column of `group_by`, response id -> group. Nothing else tells which
            answers are of which group: without them the counts by group are compared with each
            other alone, and a result in which two groups are exchanged counts as sound.
    """
    counted = _Counted(result)
    sizes = group_sizes(result, groups)
    return [
        *_row_problems(result, answers),
        *_assignment_problems(result),
        *_theme_problems(result),
        *_count_problems(result, counted),
        *wording_problems(result, answers),
        *_stance_problems(result),
        *group_problems(result, sizes, groups),
        *_share_problems(result, counted),
        *_quote_problems(result, answers),
        *_insight_problems(result, sizes),
        *_usage_problems(result),
    ]


def unexplained_figures(
    text: str, numbers: Mapping[str, int | float], names: Sequence[str] = ()
) -> list[str]:
    """Figures in `text` that are none of `numbers`: a percentage is a share, any other a count.

    Numbers in words, Roman ones and signs such as "¾" are figures that no number explains. What
    stands in quotation marks is a name or a group's label: its digits are no figures. `names` are
    those that hold quotation marks themselves.
    """
    for name in names:
        text = text.replace(f"“{name}”", "")
    plain = re.sub(r"“[^”]*”", "", text)
    counts: set[str] = set()
    shares: set[str] = set()
    for name, value in numbers.items():
        if name.rpartition(".")[2].startswith("share"):
            shares |= {f"{100 * value:.0f}", f"{100 * value:.1f}"}
        elif isinstance(value, int):
            counts.add(str(value))
    strange = [
        figure
        for figure, sign in ((found.rstrip(","), sign) for found, sign in _FIGURE.findall(plain))
        if _PLAIN.fullmatch(figure) is None
        or figure.replace(",", "") not in (shares if sign else counts)
    ]
    signs = [sign for sign in plain if sign.isnumeric() and not sign.isdecimal()]
    return [*strange, *NUMBER_WORD.findall(plain), *ROMAN.findall(plain), *signs]


class _Counted:
    """Answers by status, by theme and by sub-theme, as the assignments have them."""

    def __init__(self, result: ThemesResult) -> None:
        self.statuses = Counter(entry.status for entry in result.assignments)
        self.themes: Counter[str] = Counter()
        for entry in result.assignments:
            self.themes.update(entry.theme_ids)
            if entry.subtheme_id is not None:
                self.themes[entry.subtheme_id] += 1
        self.analysed = self.statuses.total() - self.statuses["non_answer"]


def _row_problems(result: ThemesResult, answers: Mapping[str, str]) -> Iterator[str]:
    seen = Counter(entry.response_id for entry in result.assignments)
    for response_id, times in seen.items():
        if times > 1:
            yield f"answer {response_id!r} is assigned {times} times"
        if response_id not in answers:
            yield f"answer {response_id!r} is assigned but was not given"
    yield from (f"answer {lost!r} is not assigned" for lost in answers if lost not in seen)


def _assignment_problems(result: ThemesResult) -> Iterator[str]:
    parents = {theme.id: theme.parent for theme in result.themes}
    for entry in result.assignments:
        for problem in _entry_problems(entry, parents):
            yield f"answer {entry.response_id!r}: {problem}"


def _entry_problems(entry: Assignment, parents: Mapping[str, str | None]) -> Iterator[str]:
    if (entry.status == "assigned") != bool(entry.theme_ids):
        yield f"is {entry.status} and has {len(entry.theme_ids)} themes"
    if len(set(entry.theme_ids)) < len(entry.theme_ids):
        yield "has a theme twice"
    for theme_id in entry.theme_ids:
        if parents.get(theme_id, "") is not None:
            yield f"is assigned to {theme_id!r}, which is no theme"
    if entry.subtheme_id is not None:
        primary = entry.theme_ids[0] if entry.theme_ids else None
        if primary is None or parents.get(entry.subtheme_id) != primary:
            yield f"{entry.subtheme_id!r} is not within {primary!r}"
    if entry.score is not None and not entry.theme_ids:
        yield "has a score for no theme"
    if entry.method not in ((None, "llm") if entry.status == "non_answer" else _METHODS):
        yield f"is {entry.status} by method {entry.method!r}"
    if (entry.reason is None) == (entry.status == "failed"):
        yield f"is {entry.status} for the reason {entry.reason!r}"
    for theme_id in entry.stance or ():
        if theme_id not in entry.theme_ids:
            yield f"has a stance to {theme_id!r}, which it does not list"


def _theme_problems(result: ThemesResult) -> Iterator[str]:
    ids = Counter(theme.id for theme in result.themes)
    yield from (f"theme {name} is there {times} times" for name, times in ids.items() if times > 1)
    names = Counter((theme.parent, theme.name) for theme in result.themes)
    yield from (
        f"{times} themes are named {name!r}" for (_, name), times in names.items() if times > 1
    )
    tops = {theme.id for theme in result.themes if theme.parent is None}
    for theme in result.themes:
        if theme.parent is not None and theme.parent not in tops:
            yield f"theme {theme.id} is within {theme.parent!r}, which is no theme"
    sources = {theme.name_source for theme in result.themes if theme.parent is None}
    method = result.labelling.method
    if method != "mixed" and sources - {method}:
        yield f"labelling says {method}, names are by {', '.join(sorted(sources))}"
    if method in ("llm", "mixed") and result.labelling.model is None:
        yield f"labelling says {method} and no model"


def _count_problems(result: ThemesResult, counted: _Counted) -> Iterator[str]:
    facts, statuses = result.input, counted.statuses
    stated = [
        (f"theme {theme.id}", theme.responses, counted.themes[theme.id]) for theme in result.themes
    ]
    stated += [
        ("other", result.other.responses, statuses["other"]),
        ("failed", result.failed.responses, statuses["failed"]),
        ("non_answers", result.non_answers.responses, statuses["non_answer"]),
        ("input.non_answers", facts.non_answers, statuses["non_answer"]),
        ("input.analysed", facts.analysed, counted.analysed),
        ("input.rows", facts.rows, len(result.assignments)),
        ("input.questions", sum(asked.rows for asked in facts.questions), facts.rows),
        ("input.languages", sum(facts.languages.values()), counted.analysed),
    ]
    for what, responses, there in stated:
        if responses != there:
            yield f"{what} states {responses} answers, there are {there}"
    silent = sum(asked.non_answers for asked in facts.questions)
    for what, listed, total in (
        ("non-answers", [text.responses for text in result.non_answers.texts], facts.non_answers),
        ("non-answers of the questions", [silent], facts.non_answers),
        ("reasons of the failed", list(result.failed.reasons.values()), result.failed.responses),
        ("different texts and duplicates", [facts.unique_texts, facts.duplicates], facts.analysed),
    ):
        if sum(listed) != total:
            yield f"the {what} add up to {sum(listed)}, not to {total}"
    suggested = sum(suggestion.responses for suggestion in result.other.suggested)
    if suggested > result.other.responses:
        yield f"the suggested themes hold {suggested} answers, other has {result.other.responses}"


def _stance_problems(result: ThemesResult) -> Iterator[str]:
    told: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in result.assignments:
        for theme_id, stance in (entry.stance or {}).items():
            told[theme_id][stance] += 1
            if entry.subtheme_id is not None and theme_id == entry.theme_ids[0]:
                told[entry.subtheme_id][stance] += 1
    for theme in result.themes:
        stated = theme.stance.model_dump() if theme.stance else dict.fromkeys(STANCES, 0)
        for stance in STANCES:
            if stated[stance] != told[theme.id][stance]:
                yield (
                    f"theme {theme.id} states {stated[stance]} {stance} answers, "
                    f"there are {told[theme.id][stance]}"
                )


def _share_problems(result: ThemesResult, counted: _Counted) -> Iterator[str]:
    statuses, analysed, metrics = counted.statuses, counted.analysed, result.metrics
    stated = [(f"theme {theme.id}", theme.share, theme.responses) for theme in result.themes]
    stated += [
        ("other", result.other.share, result.other.responses),
        ("failed", result.failed.share, result.failed.responses),
        ("metrics.coverage", metrics.coverage, statuses["assigned"]),
        ("metrics.other_share", metrics.other_share, statuses["other"]),
        ("metrics.failed_responses", metrics.failed_responses, statuses["failed"]),
    ]
    shares = [(what, share, part, analysed) for what, share, part in stated]
    silent = result.non_answers
    shares.append(("non_answers", silent.share, silent.responses, len(result.assignments)))
    for what, share, part, whole in shares:
        expected = part / whole if whole else 0.0
        if abs(share - expected) > ROUNDING:
            yield f"{what} states a share of {share}, it is {expected:.4f}"


def _quote_problems(result: ThemesResult, answers: Mapping[str, str]) -> Iterator[str]:
    listed = {
        entry.response_id: {*entry.theme_ids, entry.subtheme_id, entry.status}
        for entry in result.assignments
    }
    for where, home, quote in _quotes(result):
        answer = answers.get(quote.response_id)
        if answer is None or answer[quote.start : quote.end] != quote.text:
            yield f"{where}: the quote of {quote.response_id!r} is not verbatim"
        if not quote.verified:
            yield f"{where}: the quote of {quote.response_id!r} was not compared"
        if not quote.text.strip():
            yield f"{where}: the quote of {quote.response_id!r} is blank"
        if home not in listed.get(quote.response_id, ()):
            yield f"{where}: quoted answer {quote.response_id!r} is assigned elsewhere"
    if result.metrics.quote_support != 1.0:
        yield f"only {result.metrics.quote_support} of the quotes are supported"


def _quotes(result: ThemesResult) -> Iterator[tuple[str, str, Quote]]:
    """Where each quote stands, what its answer must list, and the quote."""
    for theme in result.themes:
        yield from ((theme.id, theme.id, quote) for quote in theme.quotes)
    yield from (("other", "other", quote) for quote in result.other.sample)
    for suggestion in result.other.suggested:
        yield from ((repr(suggestion.name), "other", quote) for quote in suggestion.quotes)


def _insight_problems(result: ThemesResult, sizes: Sizes) -> Iterator[str]:
    recount = Recount(result, sizes)
    themes = {theme.id: theme for theme in result.themes}
    known = {entry.response_id for entry in result.assignments}
    for number, insight in enumerate(result.insights, start=1):
        for theme_id in insight.theme_ids:
            if theme_id not in themes:
                yield f"insight {number} names theme {theme_id!r}, which does not exist"
        named = [themes[theme_id] for theme_id in insight.theme_ids if theme_id in themes]
        names = [theme.name for theme in named]
        for figure in unexplained_figures(insight.text, insight.numbers, names):
            yield f"insight {number} states {figure}, which was not computed"
        if not insight.numbers_checked:
            yield f"insight {number} was not checked"
        yield from (f"insight {number} {problem}" for problem in recount.problems(insight))
        for evidence in insight.evidence:
            if evidence.response_id not in known:
                yield f"insight {number} rests on {evidence.response_id!r}, which was not given"


def _usage_problems(result: ThemesResult) -> Iterator[str]:
    usage = result.usage
    for name in _COUNTED:
        total = sum(getattr(stage, name) for stage in usage.by_stage.values())
        if getattr(usage, name) != total:
            yield f"usage states {getattr(usage, name)} {name}, its stages add up to {total}"
    cost = sum(stage.cost for stage in usage.by_stage.values())
    if abs(usage.cost - cost) > _CENT_PART:
        yield f"usage states a cost of {usage.cost}, its stages add up to {cost}"
    if result.labelling.method in ("llm", "mixed") and not usage.llm_calls + usage.cached_calls:
        yield "labelling names an LLM, and no call was made"


_CENT_PART: Final = 1e-6
