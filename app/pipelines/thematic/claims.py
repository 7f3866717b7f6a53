"""What a model may say of a fact beside its figures: a closed list of words, and whole claims.

A word that compares, tells how often, denies, judges or explains can turn a sentence into the
opposite of its facts, in any language, and no list of such words is ever complete. So it is the
other way round: a sentence of a model consists of plain English words that only say that a theme
comes up in answers. What compares or judges stands as a claim of the fact, in the very words of its
template or in one of a few that say the same, names included, or not at all.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from app.pipelines.thematic.insights import Sentence

CLAIMED: Final = "“”"
"""Stands for a claim that was taken out, with the names in it."""

_WORDS: Final = frozenset(
    """
    a an the this that these those it its they them their there here which what
    is are was were be been being has have had do does did
    and or as well also of in out on to up by with for from at about within among across
    say says said saying speak speaks spoke spoken speaking talk talks talked talking mention
    mentions mentioned mentioning name names named naming raise raises raised raising refer refers
    referred referring relate relates related relating concerning discuss discusses discussed
    touch touches touched bring brings brought come comes came coming appear appears appeared
    note notes noted write writes wrote written cite cites cited account accounts accounted
    accounting represent represents represented hold holds held find finds found stand stands
    give given gives show shows shown tell tells told list lists listed identified counted assigned
    answer answers response responses comment comments reply replies row rows people person persons
    respondent respondents participant participants patient patients employee employees customer
    customers student students visitor visitors resident residents guest guests user users
    theme themes topic topics subject subjects survey question category share proportion percent
    per cent number feedback total result results finding findings analysed analyzed overall
    """.split()  # noqa: SIM905 - a paragraph is read and mended more easily than a list
)
"""None of them compares, counts, denies, judges or explains."""
_RELATING: Final = frozenset(
    """
    that which what by with for from at about within among across as to relate relates related
    relating refer refers referred referring concerning bring brings brought tell tells give gives
    show shows represent represents touch touches account accounts accounting hold holds
    """.split()  # noqa: SIM905
)
"""Would tie one fact to another in a sentence on several, which the facts do not."""

_WORD: Final = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
_NAME: Final = re.compile(r"“[^“”]*”")
_SIGNS: Final = re.compile(r"[^\w\s.,:;()%'\u2019“”-]|_")
_LARGEST: Final = (
    "the largest theme is {0}",
    "{0} is the largest theme",
    "more answers than on any other theme are on {0}",
    "{0} is what people speak of more than of anything else",
    "the most common theme is {0}",
    "{0} is the most common theme",
    "the most frequent theme is {0}",
    "{0} is the most frequent theme",
    "the most frequently mentioned theme is {0}",
    "{0} is the most frequently mentioned theme",
    "{0} comes up most often",
    "{0} is mentioned most often",
)
_LARGEST_ONES: Final = (
    "the largest themes are {0}, {1} and {2}",
    "the largest themes are {0}, {1}, and {2}",
    "{0}, {1} and {2} are the largest themes",
    "{0}, {1}, and {2} are the largest themes",
)
_FRAME: Final = re.compile(
    r"^(?:one of the largest themes is {N}"
    r"|of themes with at least [\d,]+ judged answers, answers are most often \w+ on {N})"
    r"|\b(?:says? nothing(?: and (?:was|were) set apart)?|could not be judged"
    r"|belongs? to no theme(?: that is large enough to be shown)?)(?=\.)".replace(
        "{N}", "“[^“”]*”"
    ),
    re.IGNORECASE,
)


def claims(fact: Sentence) -> list[str]:
    """What a sentence on the fact may claim, the longest first; without regard to case."""
    text, numbers = fact["text"].removesuffix("."), fact["numbers"]
    names = _NAME.findall(text)
    found = [match.group() for match in _FRAME.finditer(fact["text"])]
    found += [claim.partition(" and w")[0] for claim in found if "nothing" in claim]
    found += [claim.partition(" that is")[0] for claim in found if "no theme" in claim]
    if text.startswith("The largest theme is"):
        found += [form.format(*names) for form in _LARGEST]
    elif "largest" in numbers:
        found += [text, *(form.format(*names) for form in _LARGEST_ONES)]
    elif "responses_elsewhere" in numbers:
        found += [text, text.partition("”: ")[0] + "”"]
    elif "together" in numbers:
        found += [text, f"{names[0]} and {names[1]} come up together"]
    return sorted(set(found), key=lambda claim: (-len(claim), claim))


def without_claims(text: str, facts: Sequence[Sentence]) -> str:
    """The sentence with every claim of its facts taken out, for what is left to be judged.

    A theme whose size is known stays where its claim stood; other names go with their claim.
    """
    for fact in facts:
        name = _NAME.findall(fact["text"])[0] if is_on_a_size(fact) else CLAIMED
        for claim in claims(fact):
            pattern = rf"(?<!\w){re.escape(claim)}(?!\w)"
            text = re.sub(pattern, name.replace("\\", r"\\"), text, flags=re.IGNORECASE)
    return text


def is_on_a_size(fact: Sentence) -> bool:
    """Whether the fact is how large one theme is."""
    return fact["numbers"].keys() == {"responses", "analysed", "share"}


def wrong_words(text: str, facts: Sequence[Sentence]) -> Iterator[str]:
    """What a sentence says that its facts do not, in words that a model can act on.

    Args:
        text: with the names in “ ”.
        facts: what it rests on.
    """
    for fact in facts:
        of_fact = claims(fact)
        if not is_on_a_size(fact) and not any(
            each.casefold() in text.casefold() for each in of_fact
        ):
            yield f"say what the fact says, in the words “{of_fact[-1]}”"
    left = without_claims(text, facts)
    free = {_NAME.findall(fact["text"])[0] for fact in facts if is_on_a_size(fact)}
    if caught := sorted(set(_NAME.findall(left)) - free - {CLAIMED}):
        yield f"{', '.join(caught)} may stand only in the words of the fact"
    plain = _NAME.sub("", left)
    allowed = _WORDS if len(facts) == 1 else _WORDS - _RELATING
    said = {word.casefold() for word in _WORD.findall(plain)} | set(_SIGNS.findall(plain))
    if strange := sorted(said - allowed):
        words = ", ".join(map(repr, strange))
        yield f"leave out {words}: say in plain English only that the themes come up"
