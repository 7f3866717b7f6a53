"""Figures and words of quantity in a sentence of a model, held against what was computed.

A figure is tied to its place: parts stand alone or before their whole, a whole only behind "of",
a percentage is the share of what the sentence names. A word of quantity stands only where the fact
itself has it. True sentences of another build are refused too: the template's stands for them.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from app.pipelines.thematic.insights import Sentence, percent
from app.pipelines.thematic.quantities import words_of_quantity

_QUOTED: Final = re.compile(r"“([^“”]*)”")
_CHUNK: Final = re.compile(
    r"(?P<figure>[^\s()]*\d[^\s()%]*)(?P<sign>\s?%|\s(?:percent|per cent)\b)?", re.IGNORECASE
)
_COUNT: Final = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+")
_PERCENTAGE: Final = re.compile(r"[0-9]+(?:\.[0-9])?")
_BEHIND_OF: Final = re.compile(r"(?:^|[\s(])of (?:the |all |all the )?$", re.IGNORECASE)
_UP_TO_OF: Final = re.compile(r"\)? (?:[a-z]+ )?(?:out )?of (?:the |all |all the )?", re.IGNORECASE)
_NEXT: Final = re.compile(r" ([^\s.,;:!?()]+)")
_MAY_FOLLOW: Final = frozenset(
    """
    answers responses people persons respondents participants rows comments replies patients
    employees customers students visitors residents guests users of out on say speak mention name
    are were and
    """.split()  # noqa: SIM905 - a paragraph is read and mended more easily than a list
)


@dataclass(frozen=True, slots=True)
class _Measure:
    """A part of a whole, by the names that they have among a sentence's numbers.

    Attributes:
        said: a word that goes with the part, "" where none has to.
    """

    part: str
    whole: str
    share: str
    said: str = ""


_MEASURES: Final = (
    _Measure("responses", "analysed", "share"),
    _Measure("largest", "themes", ""),
    _Measure("responses", "group_size", "share", "elsewhere"),
    _Measure("responses_elsewhere", "size_elsewhere", "share_elsewhere", "elsewhere"),
    _Measure("together", "responses_first", "share_first", "together"),
    _Measure("together", "responses_second", "share_second", "together"),
    _Measure("negative", "judged", "share", "negative"),
    _Measure("positive", "judged", "share", "positive"),
    _Measure("non_answers", "rows", "share", "nothing"),
    _Measure("other", "analysed", "share", "no theme"),
    _Measure("failed", "analysed", "share", "judged"),
)
_COUNTED: Final = {"largest": "largest", "themes": "themes"}
"""Numbers that count something else than answers -> the word that has to follow."""


@dataclass(frozen=True, slots=True)
class _Figure:
    written: str
    is_share: bool
    is_well_formed: bool
    start: int
    end: int


def wrong_figures(text: str, facts: Sequence[Sentence]) -> Iterator[str]:
    """What a sentence says of quantity that its facts do not, in words that a model can act on.

    Args:
        text: with the names in “ ”.
        facts: what the sentence rests on.
    """
    plain = _plain(text)
    for sign in plain:
        if not sign.isascii() and unicodedata.numeric(sign, None) is not None:
            yield f"write figures in digits, not as {sign!r}"
    allowed = set.intersection(*(words_of_quantity(_plain(fact["text"])) for fact in facts))
    for said in sorted(words_of_quantity(plain) - allowed):
        yield f"leave out {said!r}: give the figures of the facts instead, in digits"
    if len(facts) > 1:
        yield from _wrong_of_several(text, facts)
    elif any(map(str.isdigit, plain)):
        yield from _wrong_of_one(text, facts[0])


def _plain(text: str) -> str:
    return _QUOTED.sub("“”", text)


def _wrong_of_several(text: str, facts: Sequence[Sentence]) -> Iterator[str]:
    """Figures stand in brackets behind the one theme that they are about."""
    by_name = {
        names[0]: fact
        for fact in facts
        if len(names := _QUOTED.findall(fact["text"])) == 1 and "responses" in fact["numbers"]
    }
    for name, inside in re.findall(r"“([^“”]*)” \(([^()]*)\)", text):
        if name in by_name:
            yield from _wrong_in(inside, by_name[name])
            text = text.replace(f"“{name}” ({inside})", f"“{name}”")
    if any(map(str.isdigit, _plain(text))):
        yield "put figures in brackets directly behind the name of the theme that they are about"


def _wrong_of_one(text: str, fact: Sentence) -> Iterator[str]:
    names = set(_QUOTED.findall(fact["text"]))
    if not names <= set(_QUOTED.findall(text)):
        yield "a sentence with figures has all the names of its fact"
    measures = _measures(fact)
    for said in sorted({measure.said for measure in measures if measure.said}):
        if said not in _plain(text).casefold():
            yield f"say {said!r} with these figures"
    yield from _wrong_in(_plain(text), fact)
    if sum(bool(measure.share) for measure in measures) > 1:
        # Two shares in exchange would each be computed ones.
        order = [(each.written, each.is_share) for each in _figures(_plain(fact["text"]))]
        if [(each.written, each.is_share) for each in _figures(_plain(text))] != order:
            yield "give all figures of this fact in the order in which they stand there"


def _wrong_in(plain: str, fact: Sentence) -> Iterator[str]:
    before: _Figure | None = None
    for figure in _figures(plain):
        is_right = figure.is_well_formed and any(
            _fits(figure, before, plain, measure, fact) for measure in _measures(fact)
        )
        if not is_right:
            yield f"{plain[figure.start : figure.end]!r} is not said so by the facts"
        before = figure


def _fits(
    figure: _Figure, before: _Figure | None, plain: str, measure: _Measure, fact: Sentence
) -> bool:
    """Whether the figure is one of this measure, at the place for it."""
    numbers = fact["numbers"]
    part, whole = str(numbers[measure.part]), str(numbers[measure.whole])
    shares = _written(numbers[measure.share]) if measure.share else set()
    if figure.is_share:
        return figure.written in shares
    if not _BEHIND_OF.search(plain[: figure.start]):
        return figure.written == part and _is_followed(figure, plain, measure.part)
    is_paired = before is not None and _UP_TO_OF.fullmatch(plain[before.end : figure.start])
    if is_paired and before is not None and before.written not in (shares or {part}) | {part}:
        return False
    return figure.written == whole and _is_followed(figure, plain, measure.whole)


def _is_followed(figure: _Figure, plain: str, number: str) -> bool:
    """Whether the figure counts what it should, as far as the word behind it tells."""
    following = _NEXT.match(plain, figure.end)
    word = following.group(1).casefold() if following else ""
    if number in _COUNTED:
        return word == _COUNTED[number]
    return word in _MAY_FOLLOW or not word


def _measures(fact: Sentence) -> list[_Measure]:
    return [each for each in _MEASURES if {each.part, each.whole} <= fact["numbers"].keys()]


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
