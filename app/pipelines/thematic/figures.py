"""Figures in a sentence of a model, held against what was computed.

A figure is tied to its place: parts stand alone or before their whole, a whole only behind "of",
a percentage is the share of what the sentence names; facts of several shares are told in their own
words (`claims.py`). True sentences of another build are refused too: the template's stands for
them.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from app.pipelines.thematic.claims import is_on_a_size, without_claims
from app.pipelines.thematic.insights import Sentence, percent

_QUOTED: Final = re.compile(r"“([^“”]*)”")
_CHUNK: Final = re.compile(
    r"(?P<figure>[^\s()]*\d[^\s()%]*)(?P<sign>\s?%|\s(?:percent|per cent)\b)?", re.IGNORECASE
)
_COUNT: Final = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+")
_PERCENTAGE: Final = re.compile(r"[0-9]+(?:\.[0-9])?")
_BEHIND_OF: Final = re.compile(r"(?:^|(?<!total)[\s(])of (?:the |all |all the )?$", re.IGNORECASE)
_UP_TO_OF: Final = re.compile(r"\)? (?:[a-z]+ )?(?:out )?of (?:the |all |all the )?", re.IGNORECASE)
_NEXT: Final = re.compile(r" ([^\s.,;:!?()]+)")
_MAY_FOLLOW: Final = frozenset(
    """
    answers responses people persons respondents participants rows comments replies patients
    employees customers students visitors residents guests users of out on say speak mention name
    are were and
    """.split()  # noqa: SIM905 - a paragraph is read and mended more easily than a list
)


_MEASURES: Final = (
    ("responses", "analysed"),
    ("negative", "judged"),
    ("positive", "judged"),
    ("non_answers", "rows"),
    ("other", "analysed"),
    ("failed", "analysed"),
)
"""A part of a whole, by the names that they have among the numbers of a fact with one share."""


@dataclass(frozen=True, slots=True)
class _Figure:
    written: str
    is_share: bool
    is_well_formed: bool
    start: int
    end: int


def wrong_figures(text: str, facts: Sequence[Sentence]) -> Iterator[str]:
    """Figures of a sentence that its facts do not have there, in words that a model can act on.

    Args:
        text: with the names in “ ”.
        facts: what it rests on.
    """
    left = without_claims(text, facts)
    for sign in _plain(left):
        if not sign.isascii() and unicodedata.numeric(sign, None) is not None:
            yield f"write figures in digits, not as {sign!r}"
    if len(facts) > 1:
        yield from _wrong_of_several(left, facts)
    elif any(map(str.isdigit, _plain(left))):
        if not set(_QUOTED.findall(facts[0]["text"])) <= set(_QUOTED.findall(text)):
            yield "a sentence with figures has all the names of its fact"
        yield from _wrong_in(_plain(left), facts[0])


def _plain(text: str) -> str:
    return _QUOTED.sub("“”", text)


def _wrong_of_several(text: str, facts: Sequence[Sentence]) -> Iterator[str]:
    """Figures stand in brackets behind the one theme that they are about."""
    by_name = {_QUOTED.findall(fact["text"])[0]: fact for fact in facts if is_on_a_size(fact)}
    for name, inside in re.findall(r"“([^“”]*)” \(([^()]*)\)", text):
        if name in by_name:
            yield from _wrong_in(inside, by_name[name])
            text = text.replace(f"“{name}” ({inside})", f"“{name}”")
    if any(map(str.isdigit, _plain(text))):
        yield "put figures in brackets directly behind the name of the theme that they are about"


def _wrong_in(plain: str, fact: Sentence) -> Iterator[str]:
    before: _Figure | None = None
    for figure in _figures(plain):
        is_right = figure.is_well_formed and any(
            _fits(figure, before, plain, measure, fact)
            for measure in _MEASURES
            if fact["numbers"].keys() >= {*measure, "share"}
        )
        if not is_right:
            yield f"{plain[figure.start : figure.end]!r} is not said so by the facts"
        before = figure


def _fits(
    figure: _Figure, before: _Figure | None, plain: str, measure: tuple[str, str], fact: Sentence
) -> bool:
    """Whether the figure is the part, the whole or the share, at the place for it."""
    part, whole = (str(fact["numbers"][number]) for number in measure)
    shares = _written(fact["numbers"]["share"])
    if figure.is_share:
        return figure.written in shares
    if not _is_followed(figure, plain):
        return False
    if not _BEHIND_OF.search(plain[: figure.start]):
        return figure.written == part
    is_paired = before is not None and _UP_TO_OF.fullmatch(plain[before.end : figure.start])
    if is_paired and before is not None and before.written not in shares | {part}:
        return False
    return figure.written == whole


def _is_followed(figure: _Figure, plain: str) -> bool:
    """Whether the figure counts answers or people, as far as the word behind it tells."""
    following = _NEXT.match(plain, figure.end)
    return following is None or following.group(1).casefold() in _MAY_FOLLOW


def _figures(plain: str) -> list[_Figure]:
    found = []
    for match in _CHUNK.finditer(plain):
        figure = match["figure"].rstrip(".,;:!?")
        is_share = match["sign"] is not None
        form = _PERCENTAGE if is_share else _COUNT
        cut = "" if is_share else match["figure"][len(figure) :]
        has_sign = re.search(r"[^\w\s,;:.(”“]\s*$", plain[: match.start()]) is not None
        runs_on = is_share and re.match(r"\w|[-\u2212\u2013]", plain[match.end() :]) is not None
        found.append(
            _Figure(
                figure.replace(",", ""),
                is_share,
                form.fullmatch(figure) is not None and not has_sign and not runs_on,
                match.start(),
                match.end() - len(cut),
            )
        )
    return found


def _written(share: float) -> set[str]:
    """How a share may be written as a percentage: never as 0 where it is more."""
    ways = {percent(share).split()[0], f"{100 * share:.1f}"}
    return ways if share == 0 else ways - {"0"}
