"""A result's counts of wordings and non-answers, compared with the answers as they were given.

How the pipeline cleans and masks answers before it compares them is its own business. Known here is
that equal answers stay equal, and that answers which differ in letters or digits stay different but
where personal data are masked; so counts of wordings have bounds.
"""

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from app.results.themes import ThemesResult

_INVISIBLE: Final = re.compile(r"[\u00ad\u200b-\u200f\u2028-\u202e\u2060\ufeff\ud800-\udfff]")
_NO_LETTER: Final = re.compile(r"[\W_]")


def wording_problems(result: ThemesResult, answers: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the counts of wordings, empty rows and non-answers."""
    facts = result.input
    masked = facts.masked_emails + facts.masked_phones + facts.masked_custom
    rows = [entry for entry in result.assignments if entry.response_id in answers]
    empty = sum(not answers[entry.response_id].strip() for entry in rows)
    if facts.empty != empty:
        yield f"input.empty states {facts.empty} rows, there are {empty}"
    letters = {entry.response_id: _letters(answers[entry.response_id]) for entry in rows}
    ids: dict[str, set[str]] = {"input": set(), **{theme.id: set() for theme in result.themes}}
    for entry in rows:
        if entry.status != "non_answer":
            for place in ("input", *entry.theme_ids, entry.subtheme_id):
                if place in ids:
                    ids[place].add(entry.response_id)
    stated = {"input": facts.unique_texts} | {it.id: it.unique_texts for it in result.themes}
    for place, unique in stated.items():
        least = max(0, len({letters[row] for row in ids[place]}) - masked)
        most = len({answers[row] for row in ids[place]})
        if not least <= unique <= most:
            yield f"{place} states {unique} different texts, there are {least} to {most}"
    yield from _silent_problems(result, letters, masked)


def _silent_problems(
    result: ThemesResult, letters: Mapping[str, str], masked: int
) -> Iterator[str]:
    by_rule: Counter[str] = Counter()
    by_model: Counter[str] = Counter()
    for entry in result.assignments:
        if entry.status == "non_answer" and entry.response_id in letters:
            rows = by_rule if entry.method is None else by_model
            rows[letters[entry.response_id]] += 1
    told: Counter[str] = Counter()
    for wording in result.non_answers.texts:
        told[_letters(wording.text)] += wording.responses
    unsaid = by_rule - told
    if unsaid.total() > masked:
        yield f"{_some(unsaid)} is not listed among the non-answers as often as it was given"
    # The model may have been shown an answer masked, or the beginning of a long one.
    changed = (by_model - told).total() if masked or result.input.split else 0
    invented = told - by_rule - by_model
    if invented.total() > masked + changed:
        yield f"{_some(invented)} is listed among the non-answers more often than it was given"


def _some(wordings: Iterable[str]) -> str:
    return ", ".join(sorted(map(repr, wordings))[:3])


def _letters(text: str) -> str:
    """What cleaning leaves of every text: its letters and digits in one case."""
    visible = unicodedata.normalize("NFC", _INVISIBLE.sub("", html.unescape(text)))
    return _NO_LETTER.sub("", visible.casefold())
