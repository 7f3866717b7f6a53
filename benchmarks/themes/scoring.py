"""How far a grouping agrees with people's labels: pure functions over labels."""

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

UNASSIGNED = -1


@dataclass(frozen=True, slots=True)
class Scores:
    """One grouping against one label per answer.

    Attributes:
        count: groups, those without an answer of `UNASSIGNED` alone.
        ami: adjusted mutual information (Vinh, Epps and Bailey 2010).
        ari: adjusted Rand index (Hubert and Arabie 1985).
        purity: share of answers whose label is the most frequent one of their group.
        unassigned: share of answers in no group; for the others they count as one group.
        matched_f1: see `matched_f1`.
    """

    count: int
    ami: float
    ari: float
    purity: float
    unassigned: float
    matched_f1: float


def score(gold: Sequence[str], groups: Sequence[int]) -> Scores:
    """All scores of one grouping."""
    return Scores(
        count=len(set(groups) - {UNASSIGNED}),
        ami=float(adjusted_mutual_info_score(gold, groups)),
        ari=float(adjusted_rand_score(gold, groups)),
        purity=purity(gold, groups),
        unassigned=sum(group == UNASSIGNED for group in groups) / len(groups),
        matched_f1=matched_f1(gold, groups),
    )


def purity(gold: Sequence[str], groups: Sequence[int]) -> float:
    """Share of answers whose label is the most frequent one of their group."""
    within: dict[int, Counter[str]] = {}
    for label, group in zip(gold, groups, strict=True):
        within.setdefault(group, Counter())[label] += 1
    return sum(max(counts.values()) for counts in within.values()) / len(gold)


def matched_f1(gold: Sequence[str], groups: Sequence[int]) -> float:
    """Mean F1 over the labels, each with the one group that the best matching gives it.

    No group serves two labels (Kuhn 1955, the "Hungarian" matching by F1); a label that is left
    without one counts as 0, and so does `UNASSIGNED`, which is no group.
    """
    labels, sizes = Counter(gold), Counter(groups)
    columns = sorted(set(groups) - {UNASSIGNED})
    both = Counter(zip(gold, groups, strict=True))
    table = np.array(
        [
            [2 * both[label, group] / (size + sizes[group]) for group in columns]
            for label, size in labels.items()
        ]
    ).reshape(len(labels), len(columns))
    rows, chosen = linear_sum_assignment(table, maximize=True)
    return float(table[rows, chosen].sum() / len(labels))


def samples_f1(gold: Sequence[Collection[Hashable]], ours: Sequence[Collection[Hashable]]) -> float:
    """Mean over the answers of the F1 between their labels and the ones they were given.

    An answer with no label that was given none counts as 1.
    """
    scores = []
    for wanted, given in zip(gold, ours, strict=True):
        size = len(set(wanted)) + len(set(given))
        scores.append(2 * len(set(wanted) & set(given)) / size if size else 1.0)
    return sum(scores) / len(scores)


def macro_f1(gold: Sequence[Collection[Hashable]], ours: Sequence[Collection[Hashable]]) -> float:
    """Mean over all labels of either side of the F1 between who has it and who was given it."""
    has: Counter[Hashable] = Counter(label for labels in gold for label in set(labels))
    given: Counter[Hashable] = Counter(label for labels in ours for label in set(labels))
    right: Counter[Hashable] = Counter(
        label for wanted, got in zip(gold, ours, strict=True) for label in set(wanted) & set(got)
    )
    labels = has.keys() | given.keys()
    return sum(2 * right[label] / (has[label] + given[label]) for label in labels) / len(labels)
