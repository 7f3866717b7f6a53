"""Answers that say nothing, told from those that say that all is well.

Whether "nothing" is a non-answer depends on the question, and the rule is this: where the question
asks what could be better ("How could we improve?"), "nothing", "no" or "none" says that all is
well and is analysed as any answer; under every other question, and without one, it says nothing.
"Did not answer", "n/a", "don't know" and the like are non-answers always.
"""

import re
from collections.abc import Sequence
from typing import Final

from app.pipelines.thematic.load import Answers

NON_ANSWERS: Final = frozenset(
    [
        "",
        "as above",
        "as before",
        "cant comment",
        "did not answer",
        "did not say",
        "ditto",
        "dk",
        "do not know",
        "dont know",
        "i do not know",
        "i dont know",
        "idk",
        "na",
        "nan",
        "no answer",
        "no comment",
        "no comments",
        "no further comment",
        "no further comments",
        "no idea",
        "no opinion",
        "no reply",
        "no response",
        "none given",
        "not answered",
        "not applicable",
        "not available",
        "not stated",
        "not sure",
        "nothing to add",
        "nothing to say",
        "null",
        "prefer not to answer",
        "prefer not to say",
        "refused",
        "same as above",
        "see above",
        "skip",
        "unsure",
        "x",
        "xx",
        "xxx",
    ]
)
"""Say nothing under any question; compared after `normalise`."""

NOTHINGS: Final = frozenset(
    [
        "absolutely nothing",
        "cannot think of anything",
        "cant think of any",
        "cant think of anything",
        "i cant think of anything",
        "nil",
        "no",
        "no nothing",
        "no thank you",
        "no thanks",
        "none",
        "none at all",
        "nope",
        "not a thing",
        "not really",
        "nothing",
        "nothing at all",
        "nothing comes to mind",
        "nothing else",
        "nothing i can think of",
        "nothing in particular",
        "nothing more",
        "nothing much",
        "nothing really",
        "nothing springs to mind",
        "nothing specific",
        "nothing thank you",
        "nothing thanks",
    ]
)
"""Say that all is well where the question asks what could be better, and nothing otherwise."""

_ASKS_WHAT_TO_IMPROVE: Final = re.compile(
    r"\b(improv\w*|better|chang(?:e|es|ed)|differently|dislik\w*|wrong|worse|worst|problems?"
    r"|issues?|concerns?|missing|frustrat\w*|dissatisf\w*|complain\w*)\b",
    re.IGNORECASE,
)


def is_non_answer(wording: str, *, nothing_answers: bool) -> bool:
    """Whether a wording, as `normalise` makes it, says nothing.

    Args:
        nothing_answers: whether "nothing" is an answer to the question.
    """
    return wording in NON_ANSWERS or (wording in NOTHINGS and not nothing_answers)


def asks_what_to_improve(question: str | None) -> bool:
    """Whether "nothing" says that all is well."""
    return question is not None and _ASKS_WHAT_TO_IMPROVE.search(question) is not None


def rule(answers: Answers, nothing_answers: Sequence[bool]) -> str:
    """How answers and non-answers were told apart, for people; `nothing_answers` by column."""
    if len(set(nothing_answers)) > 1:
        columns = [
            f"“{column}”"
            for column, answer in zip(answers.columns, nothing_answers, strict=True)
            if answer
        ]
        return (
            f"In {', '.join(columns)} the question asks what could be better, so “nothing”, “no” "
            "or “none” was analysed as an answer there and set apart elsewhere; empty cells, "
            "“n/a”, “don't know” and the like were set apart everywhere."
        )
    if nothing_answers[0]:
        return (
            "The question asks what could be better, so “nothing”, “no” or “none” was analysed as "
            "an answer; empty cells, “n/a”, “don't know” and the like were set apart."
        )
    given = any(question is not None for question in answers.questions)
    why = "the question asks for no improvement" if given else "no question was given"
    return (
        f"Since {why}, “nothing”, “no” or “none” was set apart together with empty cells, “n/a”, "
        "“don't know” and the like."
    )
