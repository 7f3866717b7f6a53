"""Long answers in parts: where they are cut.

A long answer speaks of several things, and an embedding model reads only its beginning. So it is
clustered by parts, each of whole sentences, and counted as the one answer that it is.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

LONG: Final = 600
"""Characters up to which an answer stays whole: some 150 of the 256 tokens that a model reads. Of
white space, here as below, a run counts as one."""

PART: Final = 400  # characters; a part is filled up to this with whole sentences
TAIL: Final = 60  # a shorter rest stays with the part before it
MAX_PARTS: Final = 50  # of one answer; the parts of a still longer one are longer

_SENTENCE_END: Final = re.compile(
    r"(?<![.!?…])[.!?…]+[\"'”\u2019)\]]*\s+|[\u3002\uff01\uff1f]+\s*|\n\s*"
)


class Span(NamedTuple):
    """A text, and the slice of an answer that says it."""

    text: int
    start: int
    end: int


def cut(original: str, whole: Sequence[tuple[int, int]] = ()) -> list[tuple[int, int]]:
    """Offsets of the parts of an answer, in order and without gaps; one where it is short.

    Args:
        original: the answer.
        whole: slices that no cut goes through, in order.
    """
    if len(original) <= LONG:
        return [(0, len(original))]
    text, places = _squeezed(original)
    if len(text) <= LONG:
        return [(0, len(original))]
    size = max(PART, -(-2 * len(text) // MAX_PARTS))
    parts = []
    start = 0
    while len(text) - start > size + TAIL:
        end = _end(text, start + size // 2, start + size)
        after = next((after for before, after in whole if before < places[end] < after), 0)
        end = max(end, bisect_left(places, after))
        parts.append((places[start], places[end]))
        start = end
    return [*parts, (places[start], len(original))] if start < len(text) else parts


def _squeezed(original: str) -> tuple[str, list[int]]:
    """The text with one sign for each run of white space, and where each sign stands.

    The places have one entry more: the end.
    """
    signs, places = [], []
    for run in re.finditer(r"\s+|\S+", original):
        if run.group().isspace():
            signs.append("\n" if "\n" in run.group() else " ")
            places.append(run.start())
        else:
            signs.append(run.group())
            places.extend(range(run.start(), run.end()))
    return "".join(signs), [*places, len(original)]


def _end(original: str, least: int, limit: int) -> int:
    """Behind the last sentence that ends before `limit`, else behind a word, else right there."""
    ends = [match.end() for match in _SENTENCE_END.finditer(original, least, limit)]
    if ends:
        return ends[-1]
    space = original.rfind(" ", least, limit)
    return limit if space < 0 else space + 1
