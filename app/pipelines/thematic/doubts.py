"""Which verdicts of a model the vectors support least, and which look as if they were ordered."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.pipelines.thematic.assigned import Assigned, overlap

SHARE: Final = 0.02
"""Of the answers judged in batches, rounded up to whole calls: 1,000 answers take one."""
FARTHER: Final = 0.1
"""Cosine by which a theme is so much farther than another that few would choose it."""

_OPPOSITE: Final = {"positive", "negative"}


class Doubts:
    """Compares verdicts with vectors.

    Args:
        cosine: text and theme -> cosine to the theme's centre or code.
    """

    def __init__(self, cosine: NDArray[np.float32]) -> None:
        self._cosine = cosine

    def of(
        self, batches: Sequence[Sequence[int]], told: Mapping[int, Assigned], size: int
    ) -> list[int]:
        """Of each batch the verdict that the vectors support least, the most doubtful of these.

        Args:
            size: texts per call.
        """

        def doubt(text: int) -> tuple[float, int]:
            return -self._surprise(text, told[text]), text

        calls = math.ceil(SHARE * sum(map(len, batches)) / size)
        least = sorted((min(batch, key=doubt) for batch in batches if batch), key=doubt)
        return least[: calls * size]

    def beside(
        self, text: int, told: Mapping[int, Assigned], alone: Assigned, batch: Sequence[int]
    ) -> list[int]:
        """What else of a text's batch is doubtful, now that the text alone is judged otherwise.

        Nothing where it differs by a theme that is about as near: so does a model that is unsure.
        """
        others = [other for other in batch if other != text]
        if _opposite(told[text], alone):
            return others
        farther = self._surprise(text, told[text]) - self._surprise(text, alone)
        if overlap(told[text], alone) and farther <= FARTHER:
            return []
        return [other for other in others if self._surprise(other, told[other]) > FARTHER]

    def _surprise(self, text: int, verdict: Assigned) -> float:
        """By how much the farthest theme of a verdict is farther than the nearest theme.

        For no theme at all, by how much the nearest one stands out from the others.
        """
        near = self._cosine[text]
        least = min((near[each] for each in verdict.themes), default=np.median(near))
        return round(float(near.max() - least), 4)


def _opposite(one: Assigned, other: Assigned) -> bool:
    """Whether one verdict praises what the other blames."""
    if not (one.stance and other.stance):
        return False
    before, after = (dict(zip(each.themes, each.stance, strict=True)) for each in (one, other))
    return any({before[theme], after[theme]} == _OPPOSITE for theme in before.keys() & after.keys())
