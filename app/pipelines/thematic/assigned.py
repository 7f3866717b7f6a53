"""Where texts belong, by whoever's word: what the stages after the assignment work on."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Assigned:
    """Where one text belongs.

    Attributes:
        status: "assigned", "other", "non_answer" or "failed".
        themes: numbers, the primary one first; empty unless assigned.
        score: cosine to the primary theme's centre, None without one.
        method: "cluster", "similarity", "codebook" or "llm"; None for a non-answer by rule.
        reason: why it failed, None where it did not.
        stance: one of STANCES for each of `themes`; empty where it was not asked for.
    """

    status: str
    themes: list[int]
    score: float | None
    method: str | None
    reason: str | None = None
    stance: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Assignments:
    """Where all texts belong.

    Attributes:
        of: by text.
        batch: answers per call that the calibration chose, None without the model.
        agreements: batch size -> overlap with the answers judged singly.
        doubled: texts that were judged in two batches with nobody else in common.
        doubled_same: those of them of which both batches said the same.
        fallen_back: texts that the model was lost for; the clusters' word stands for them.
        suggested: groups of texts in none of the codes, with a codebook.
        lost: why the model was given up on the way, None where it was not.
    """

    of: list[Assigned]
    batch: int | None = None
    agreements: dict[str, float] = field(default_factory=dict)
    doubled: int = 0
    doubled_same: int = 0
    fallen_back: int = 0
    suggested: list[list[int]] = field(default_factory=list)
    lost: str | None = None


def overlap(one: Assigned, other: Assigned) -> float:
    """Jaccard of what two judgements say of one text, 0 to 1."""
    first: set[Any] = set(one.themes) or {one.status}
    second: set[Any] = set(other.themes) or {other.status}
    return len(first & second) / len(first | second)


def says_the_same(one: Assigned, other: Assigned) -> bool:
    """Whether two judgements give a text the same themes, in any order, each with one stance."""
    return one.status == other.status and _stances(one) == _stances(other)


def _stances(judged: Assigned) -> dict[int, str]:
    return dict(zip(judged.themes, judged.stance or [""] * len(judged.themes), strict=True))
