"""Answers that judge the whole and name nothing: "Very good", "No complaints", "Terrible service".

Embeddings scatter them over many small groups by their wording ("Could not be better", "Can't
fault it"), while people code them as one: general praise, or general criticism. They are told by
their words, all of which must be on the lists here or stop words: one topic word, and the answer
is about something. English alone; in any other language no answer is a verdict.
"""

from typing import Final

from app.pipelines.thematic.non_answers import NOTHINGS
from app.pipelines.thematic.prepare import normalise
from app.pipelines.thematic.words import is_stop, tokens

PRAISE: Final = 1
CRITICISM: Final = -1
NONE: Final = 0

_GOOD: Final = frozenset(
    """
    amazing awesome best brilliant enjoyed excellent exceptional fab fabulous fantastic fine good
    grateful great happy impeccable impressed liked lovely loved marvellous nice ok okay
    outstanding perfect perfectly pleased satisfactory satisfied satisfying superb terrific thank
    thankful thanks well wonderful
    """.split()  # noqa: SIM905 - a paragraph is read and mended more easily than a list
)
_BAD: Final = frozenset(
    """
    abysmal appalled appalling atrocious awful bad disappointed disappointing disgraceful disgusted
    disgusting dissatisfied dreadful hated horrendous horrible mediocre pathetic poor rubbish
    shocking terrible unacceptable unhappy unimpressed unsatisfactory useless worst
    """.split()  # noqa: SIM905
)
_AMISS: Final = frozenset(
    """
    add added bettered better change changed changes complain complained complaining complaint
    complaints criticise criticism criticisms different differently fault faulted faults improve
    improved improvement improvements improving issue issues problem problems worse wrong
    """.split()  # noqa: SIM905
)
"""What there is none of where all is well."""

_NEGATIONS: Final = frozenset(
    """
    cannot cant can't couldnt couldn't didnt didn't doesnt doesn't dont don't hardly isnt isn't
    never no none not nothing nil wasnt wasn't wont won't wouldnt wouldn't
    """.split()  # noqa: SIM905
)
_OPENINGS: Final = frozenset({"no", "none", "nothing", "nil"})
"""Answer the question before the judgement begins: "Nothing. All very good"."""

_PLAIN: Final = frozenset(
    """
    absolutely all always completely done entirely everything experience extremely far fully
    highly incredibly job mind needed needs overall particular perfectly possible possibly
    satisfaction service services things think thought time times total totally truly way work
    """.split()  # noqa: SIM905
)


def verdict(text: str) -> int:
    """`PRAISE`, `CRITICISM`, or `NONE` for an answer that names something or judges nothing.

    "Nothing" and its like are praise: they are analysed only where the question asks what could be
    better.
    """
    if normalise(text) in NOTHINGS:
        return PRAISE
    words = tokens(text)
    if not all(word in _KNOWN or is_stop(word) for word in words):
        return NONE
    said = frozenset(words)
    is_good, is_bad, is_amiss = (not said.isdisjoint(words) for words in (_GOOD, _BAD, _AMISS))
    is_negated = not said.isdisjoint(_NEGATIONS)
    if is_amiss:
        if is_negated and not is_bad:
            return PRAISE
        return NONE if is_good or is_negated else CRITICISM
    if is_good == is_bad:
        return NONE
    if is_negated and words[0] not in _OPENINGS:
        is_good = not is_good
    return PRAISE if is_good else CRITICISM


_KNOWN: Final = _GOOD | _BAD | _AMISS | _NEGATIONS | _PLAIN
