"""Confident learning."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.core.errors import DataError
from headstart.evaluation.label_errors import average_scores, class_thresholds, find_label_errors

CLEANLAB = {
    0: [14, 52],
    1: [3, 8, 10, 12, 13, 15, 29, 32, 35, 39, 47, 55, 57],
    2: [0, 3, 5, 6, 18, 23, 25, 27, 29, 32, 40, 41, 48, 49, 50, 56, 57, 59],
}
"""Rows that cleanlab 2.9.0 finds with `filter_by="confident_learning"` in `noisy(seed)`."""


def noisy(seed: int) -> tuple[list[int], np.ndarray]:
    """Return 60 labels of two to four classes, a tenth of them random, and probabilities."""
    rng = np.random.default_rng(seed)
    classes = 2 + seed
    probabilities = rng.dirichlet(np.full(classes, 0.4), size=60)
    labels = [rng.choice(classes, p=row) if rng.random() > 0.1 else rng.integers(classes) for row in probabilities]
    return [int(label) for label in labels], probabilities


def by_label(probabilities: np.ndarray) -> list[dict[int, float]]:
    return [dict(enumerate(row)) for row in probabilities.tolist()]


def test_by_hand():
    """Thresholds: a (0.9 + 0.6 + 0.2) / 3 = 0.567, b (0.8 + 0.7) / 2 = 0.75. Row 2 (b: 0.8) reaches that of b."""
    given = ["a", "a", "a", "b", "b"]
    a = [0.9, 0.6, 0.2, 0.2, 0.3]
    scores = [{"a": p, "b": 1 - p} for p in a]
    (issue,) = find_label_errors(given, scores)
    assert (issue.row, issue.given, issue.suggested) == (2, "a", "b")
    assert (issue.given_probability, issue.suggested_probability) == pytest.approx((0.2, 0.8))


def test_disagreement_below_the_threshold_is_not_an_error():
    """The model prefers b for row 1, but not as surely as for the rows of b."""
    scores = [{"a": p, "b": 1 - p} for p in (0.9, 0.45, 0.1, 0.1)]
    assert find_label_errors(["a", "a", "b", "b"], scores) == []


def test_the_surest_comes_first():
    a = [0.9] * 8 + [0.1] * 8 + [0.05, 0.02]
    issues = find_label_errors(["a"] * 8 + ["b"] * 8 + ["a", "a"], [{"a": p, "b": 1 - p} for p in a])
    assert [issue.row for issue in issues] == [17, 16]


@pytest.mark.parametrize("seed", CLEANLAB)
def test_rows_are_those_that_cleanlab_recorded(seed):
    labels, probabilities = noisy(seed)
    assert sorted(issue.row for issue in find_label_errors(labels, by_label(probabilities))) == CLEANLAB[seed]


@pytest.mark.parametrize("seed", range(6))
def test_rows_and_thresholds_are_those_of_cleanlab(seed):
    pytest.importorskip("cleanlab", reason="cleanlab is missing; `pip install cleanlab` brings it")
    from cleanlab.count import get_confident_thresholds
    from cleanlab.filter import find_label_issues

    labels, probabilities = noisy(seed)
    expected = find_label_issues(np.array(labels), probabilities, filter_by="confident_learning", n_jobs=1)
    assert (
        sorted(issue.row for issue in find_label_errors(labels, by_label(probabilities)))
        == np.flatnonzero(expected).tolist()
    )
    thresholds = get_confident_thresholds(np.array(labels), probabilities)
    assert class_thresholds(labels, probabilities) == pytest.approx(thresholds)


def test_the_mean_over_seeds():
    assert average_scores([[{"a": 0.2, "b": 0.8}], [{"a": 0.6, "b": 0.4}]]) == [pytest.approx({"a": 0.4, "b": 0.6})]


def test_a_label_without_a_probability_and_another_number_of_rows_are_refused():
    with pytest.raises(DataError, match="'c'"):
        find_label_errors(["c"], [{"a": 1.0}])
    with pytest.raises(DataError, match="2 labels and 1 rows"):
        find_label_errors(["a", "a"], [{"a": 1.0}])
    assert find_label_errors([], []) == []
