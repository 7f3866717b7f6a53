import itertools

import numpy as np
import pytest
from sklearn.metrics import f1_score

from benchmarks.themes.scoring import macro_f1, matched_f1, purity, samples_f1, score


def test_a_perfect_grouping_scores_one_whatever_its_numbers() -> None:
    its = score(["a", "a", "b", "c"], [7, 7, 3, 5])
    assert (its.count, its.ami, its.ari, its.purity, its.matched_f1) == (3, 1.0, 1.0, 1.0, 1.0)
    assert its.unassigned == 0.0


def test_unassigned_answers_are_counted_and_are_no_group() -> None:
    its = score(["a", "a", "b", "b"], [0, 0, -1, -1])
    assert (its.count, its.unassigned) == (1, 0.5)
    assert its.matched_f1 == 0.5  # b is found by no group


def test_purity_counts_the_most_frequent_label_of_each_group() -> None:
    assert purity(["a", "a", "b", "b", "b"], [0, 0, 0, 1, 1]) == 0.8


def test_no_group_is_matched_with_two_labels() -> None:
    # Group 0 would be the best for both; b has to take group 1: 2*1/(3+1) = 0.5.
    gold = ["a"] * 4 + ["b"] * 3
    groups = [0, 0, 0, 0, 0, 0, 1]
    assert matched_f1(gold, groups) == pytest.approx((2 * 4 / (4 + 6) + 0.5) / 2)


def test_the_matching_is_the_best_one() -> None:
    rng = np.random.default_rng(0)
    gold = [str(label) for label in rng.integers(0, 4, 60)]
    groups = rng.integers(0, 4, 60).tolist()
    best = max(
        f1_score(gold, [str(order[group]) for group in groups], average="macro")
        for order in itertools.permutations(range(4))
    )
    assert matched_f1(gold, groups) == pytest.approx(best)


def test_several_labels_are_scored_per_answer_and_per_label() -> None:
    gold = [["a", "b"], ["a"], [], ["c"]]
    ours = [["a"], ["a", "b"], [], []]
    assert samples_f1(gold, ours) == pytest.approx((2 / 3 + 2 / 3 + 1 + 0) / 4)
    assert macro_f1(gold, ours) == pytest.approx((1 + 0 + 0) / 3)


def test_scores_of_several_labels_are_the_known_ones() -> None:
    rng = np.random.default_rng(1)
    gold, ours = rng.random((50, 5)) < 0.4, rng.random((50, 5)) < 0.4
    sets = [[np.flatnonzero(row).tolist() for row in table] for table in (gold, ours)]
    known = f1_score(gold, ours, average="samples", zero_division=1.0)
    assert samples_f1(*sets) == pytest.approx(known)
    assert macro_f1(*sets) == pytest.approx(f1_score(gold, ours, average="macro"))
