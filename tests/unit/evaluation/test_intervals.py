"""Intervals of a score on one test set."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from headstart.evaluation.intervals import (
    Estimate,
    bootstrap,
    bootstrap_auc,
    bootstrap_mean,
    bootstrap_ratio,
    wilson,
)
from headstart.evaluation.resampling import CrossedDesign, draw_crossed


@pytest.mark.parametrize(("hits", "total"), [(0, 5), (5, 5), (7, 20), (950, 1000)])
def test_wilson_is_that_of_scipy(hits, total):
    estimate = wilson(hits, total)
    expected = stats.binomtest(hits, total).proportion_ci(method="wilson")
    assert estimate.value == hits / total
    assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high))


def test_a_fraction_of_nothing_has_no_value():
    assert wilson(0, 0) == Estimate(None)


def test_the_bootstrap_of_accuracy_is_near_the_normal_interval():
    rng = np.random.default_rng(0)
    gold = [1] * 1000
    predicted = [int(x) for x in rng.random(1000) < 0.8]
    estimate = bootstrap("accuracy", gold, predicted)
    value = sum(predicted) / 1000
    half = 1.96 * math.sqrt(value * (1 - value) / 1000)
    assert estimate.value == value
    assert (estimate.low, estimate.high) == pytest.approx((value - half, value + half), abs=0.004)
    assert bootstrap("accuracy", gold, predicted) == estimate, "equal rows give equal intervals"


def test_the_bootstrap_of_a_mean():
    values = np.random.default_rng(1).normal(3.0, 2.0, 400).tolist()
    estimate, half = bootstrap_mean(values), 1.96 * np.std(values) / 20
    assert estimate.value == pytest.approx(np.mean(values))
    assert (estimate.low, estimate.high) == pytest.approx((np.mean(values) - half, np.mean(values) + half), abs=0.03)


def test_spearman_and_a_single_row():
    estimate = bootstrap("spearman", [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 4.0, 3.0])
    assert estimate.value == pytest.approx(0.8) and estimate.low <= 0.8 <= estimate.high
    assert bootstrap("accuracy", ["a"], ["a"]) == Estimate(1.0, 1.0, 1.0)


def test_a_ratio_over_groups_is_that_of_the_sums_and_its_interval_is_wider_than_over_single_words():
    """Ten sentences of ten words, all right or all wrong: they are ten observations, not a hundred."""
    hits = [10.0, 0.0] * 5
    grouped, single = bootstrap_ratio(hits, [10.0] * 10), wilson(50, 100)
    assert grouped.value == 0.5 and grouped.high - grouped.low > 2 * (single.high - single.low)
    assert bootstrap_ratio([1, 3], [2, 10]).value == pytest.approx(4 / 12)


def test_the_area_under_the_curve_is_that_of_scikit_learn():
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    positive = rng.random(200) < 0.4
    scores = np.round(rng.normal(size=200) + positive, 1)
    found = bootstrap_auc(scores.tolist(), positive.tolist())
    assert found.value == pytest.approx(roc_auc_score(positive, scores)) and found.low < found.value < found.high
    assert bootstrap_auc([1.0, 2.0], [True, True]).value is None


def test_cells_of_a_row_are_no_independent_values():
    """Rows that differ in columns that do not: the interval is that of the row means, not that of all cells."""
    means = np.random.default_rng(0).normal(size=6).tolist()
    cells = [(value, f"row {r}", f"column {c}") for r, value in enumerate(means) for c in range(50)]
    crossed, rows, naive = (
        bootstrap_mean([value for value, _, _ in cells], CrossedDesign(*list(zip(*cells, strict=True))[1:])),
        bootstrap_mean(means),
        bootstrap_mean([value for value, _, _ in cells]),
    )
    assert crossed.value == pytest.approx(rows.value)
    widths = [estimate.high - estimate.low for estimate in (crossed, rows, naive)]
    assert widths[0] == pytest.approx(widths[1], rel=0.1) and widths[0] > 5 * widths[2]


def test_a_table_of_one_column_and_missing_cells():
    one = bootstrap_mean([1.0, 2.0, 6.0], CrossedDesign(["a", "b", "c"], ["", "", ""]))
    assert one.value == 3.0 and one.low < 2 and one.high > 4
    diagonal = bootstrap_mean([1.0, 2.0], CrossedDesign(["a", "b"], ["x", "y"]))
    assert (diagonal.value, diagonal.low, diagonal.high) == (1.5, 1.0, 2.0)


def test_resamples_of_a_table_are_never_empty_and_as_many_as_asked_for():
    sparse = CrossedDesign(["a", "b", "c"], ["x", "y", "z"])
    counts = np.concatenate(list(draw_crossed(sparse, 500, 0)))
    assert counts.shape == (500, 3) and counts.any(axis=1).all()
    large = CrossedDesign([str(i) for i in range(600)], [""] * 600)
    chunks = list(draw_crossed(large, 2000, 0))
    assert len(chunks) > 1 and sum(map(len, chunks)) == 2000
    assert all((chunk.sum(axis=1) == 600).all() for chunk in chunks), "one column: 600 rows are drawn"
    assert sparse.at([2, 0]) == CrossedDesign(["c", "a"], ["z", "x"])
