"""The confusion matrix and the scores of each class."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from headstart.evaluation.confusion import Confusion

GOLD = ["b", "a", "a", "c", "a", "b"]
PREDICTED = ["b", "a", "b", "a", "b", "d"]


def test_the_matrix_is_that_of_sklearn_with_the_largest_class_first():
    found = Confusion.of(GOLD, PREDICTED)
    assert found.labels == ["a", "b", "c", "d"], "by support; d is only predicted"
    assert found.counts.tolist() == confusion_matrix(GOLD, PREDICTED, labels=found.labels).tolist()


def test_class_scores_are_those_of_sklearn():
    rng = np.random.default_rng(0)
    gold, predicted = rng.integers(0, 6, 200).tolist(), rng.integers(0, 5, 200).tolist()
    found = Confusion.of(gold, predicted).class_scores()
    labels = [item.label for item in found]
    expected = precision_recall_fscore_support(gold, predicted, labels=labels, zero_division=0)
    assert [item.precision or 0.0 for item in found] == pytest.approx(expected[0].tolist())
    assert [item.recall.value for item in found] == pytest.approx(expected[1].tolist())
    assert [item.f1 for item in found] == pytest.approx(expected[2].tolist())
    assert [item.support for item in found] == expected[3].tolist()
    assert found[labels.index(5)].precision is None, "never predicted"


def test_only_the_most_confused_classes_are_kept():
    gold = [f"c{i:02}" for i in range(30) for _ in range(4)]
    predicted = list(gold)
    predicted[0], predicted[117] = "c29", "c00"  # c00 and c29 are taken for each other
    kept = Confusion.of(gold, predicted).most_confused(2)
    assert kept.labels == ["c00", "c29"] and kept.counts.tolist() == [[3, 1], [1, 3]]
    assert len(Confusion.of(gold, predicted).most_confused(40).labels) == 30


def test_pairs_are_the_most_frequent_confusions():
    pairs = Confusion.of(GOLD, PREDICTED).pairs(2)
    assert [(pair.gold, pair.predicted, pair.count) for pair in pairs] == [("a", "b", 2), ("b", "d", 1)]
    assert pairs[0].fraction == pytest.approx(2 / 3)
    assert Confusion.of(["a"], ["a"]).pairs(5) == []
