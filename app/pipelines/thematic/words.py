"""Words of an English answer: tokens, stop words, and stems that tell one word from another."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

MASKS: Final = ("[email]", "[phone]", "[redacted]")
"""What stands in a text for masked personal data; never a word."""

_MASK: Final = re.compile("|".join(re.escape(mask) for mask in MASKS))
_WORD: Final = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_BREAK: Final = re.compile(r"[.!?;:,()\[\]\"“”/|…\n]+|\s[-\u2013\u2014]\s|\s&\s")
_MIN_LENGTH: Final = 3

STOP_WORDS: Final = frozenset(
    """
    a about above across actually after again against ago all almost alone along already also
    although always am among an and another any anybody anymore anyone anything anyway anywhere
    are aren't around as ask at away be became because become been before behind being below
    beside besides between beyond both but by came can can't cannot come could couldn't did didn't
    do does doesn't doing don't done due during each either else enough etc even ever every
    everybody everyone everywhere except far few for from further gave get gets getting give given
    gives go goes going gone got had hadn't has hasn't have haven't having he he'd he'll he's hence
    her here hers herself him himself his how however i i'd i'll i'm i've if in indeed instead into
    is isn't it it'd it'll it's its itself just kept know knew known let like likely lot lots made
    make makes making many may maybe me meanwhile might mine more moreover most mostly much must
    mustn't my myself near nearly neither never nevertheless nor no nobody none not now nowhere of
    often oh ok okay on once one ones only onto or other others otherwise ought our ours
    ourselves over own per perhaps please put quite rather re really regarding said same saw
    say says see seem seemed seems seen several shall shan't she she'd she'll she's should
    shouldn't since so some somebody somehow someone something sometimes somewhere still such
    sure take taken takes taking than thank thanks that that'll that's the their theirs them
    themselves then there there's thereby therefore these they they'd they'll they're they've
    thing things think this those though thought through throughout thus till to together told
    too took toward towards try trying twice under unless until unto upon us use used using
    usually very via want wanted was wasn't way we we'd we'll we're we've well went were weren't
    what what's whatever when whenever where whereas wherever whether which whichever while who
    who's whoever whole whom whose why will with within without won't would wouldn't yes yet you
    you'd you'll you're you've your yours yourself yourselves
    """.split()  # noqa: SIM905 - a paragraph is read and mended more easily than a list
)
_BARE_STOPS: Final = frozenset(word.replace("'", "") for word in STOP_WORDS) - frozenset(
    ("hell", "ill", "shed", "shell", "wed")  # words of their own, unlike "dont" and "theyre"
)
_PARTICLES: Final = frozenset({"back", "down", "off", "out", "up"})
"""Belong to the verb before them ("pick up"), and say nothing alone."""

_ALONE: Final = frozenset({"everything", "nothing"})
"""Mean a great deal as an answer and nothing beside a word ("Nothing everything fine")."""


def is_stop(word: str) -> bool:
    """Whether a lower-case word carries no topic; contractions count with or without apostrophe."""
    return word in STOP_WORDS or word in _BARE_STOPS


def tokens(text: str) -> list[str]:
    """Lower-case words in order, apostrophes straight, masks left out."""
    plain = _MASK.sub(" ", text).replace("\u2019", "'").casefold()
    return _WORD.findall(plain)


def phrases(text: str) -> Iterator[tuple[str, ...]]:
    """Topic words and pairs of adjacent ones, in order; a pair never spans punctuation."""
    for clause in _BREAK.split(_MASK.sub(" . ", text)):
        words = tokens(clause)
        for word in words:
            if _is_topic(word):
                yield (word,)
        for first, second in pairwise(words):
            if _is_pair(first, second):
                yield (first, second)


def _is_topic(word: str) -> bool:
    topical = len(word) >= _MIN_LENGTH and not word.isdigit()
    return topical and word not in _PARTICLES and not is_stop(word)


def _is_pair(first: str, second: str) -> bool:
    if not _is_topic(first) or not (_is_topic(second) or second in _PARTICLES):
        return False
    return _ALONE.isdisjoint((first, second)) and stem(first) != stem(second)


def stem(word: str) -> str:
    """A crude stem, good enough to see that "arrived" and "arrive" are one word.

    Plural, -ed, -ing, -ly and a final e are taken off where four letters remain ("caring" is not
    "car"); nothing is ever shown in this form.
    """
    word = word.removesuffix("'s")
    if not word.endswith(("ss", "us", "is")):
        word = re.sub(r"(?<=\w{3})s$", "", re.sub(r"(?<=\w{2})ies$", "y", word))
    word = re.sub(r"(?<=\w{4})(?:ing|ed|ly)$", "", word)
    word = re.sub(r"(?<=\w{2})([bdgmnprt])\1$", r"\1", word)
    return re.sub(r"y$", "i", re.sub(r"(?<=\w{4})e$", "", word))
