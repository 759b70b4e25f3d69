"""Ranking metrics: agreement with scikit-learn, and values by hand."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.core.errors import DataError
from headstart.core.randomness import generator
from headstart.evaluation.ranking import mrr_at_10, ndcg_at_10


def test_ndcg_agrees_with_scikit_learn():
    from sklearn.metrics import ndcg_score

    rng = generator(0, 0, 0, "rankings")
    gold, predicted, expected = [], [], []
    for _ in range(50):
        order = rng.permutation(15).tolist()
        relevant = rng.choice(15, size=rng.integers(1, 13), replace=False).tolist()
        gold.append(relevant)
        predicted.append(order)
        is_relevant = np.isin(np.arange(15), relevant).astype(float)
        expected.append(ndcg_score([is_relevant], [-np.argsort(order).astype(float)], k=10))
    assert ndcg_at_10(gold, predicted) == pytest.approx(np.mean(expected))


def test_reciprocal_ranks_by_hand():
    gold = ["a", "b", ["c", "d"], "e"]
    predicted = [["a", "x"], ["x", "y", "b"], ["x", "d", "c"], list("klmnopqrste")]
    assert mrr_at_10(gold, predicted) == pytest.approx((1 + 1 / 3 + 1 / 2 + 0) / 4)


def test_a_repeated_item_counts_once():
    assert mrr_at_10(["b"], [["a", "a", "b"]]) == 0.5
    assert ndcg_at_10(["a"], [["a", "a"]]) == 1.0


def test_the_number_of_rankings_must_match():
    with pytest.raises(DataError, match="2 gold values and 1 predictions"):
        ndcg_at_10(["a", "b"], [["a"]])
