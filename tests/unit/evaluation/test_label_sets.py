"""Metrics of label sets, compared with scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score
from sklearn.preprocessing import MultiLabelBinarizer

from headstart.core.data import Examples
from headstart.core.errors import DataError
from headstart.evaluation import metrics
from headstart.evaluation.baselines import majority
from headstart.evaluation.label_sets import scores_by_label
from headstart.evaluation.report.facts import evaluate_rows
from headstart.evaluation.report.predicted import Predicted
from headstart.evaluation.svm import svm

NAMES = ("multi_label_macro_f1", "multi_label_micro_f1", "subset_accuracy")


def random_sets(seed: int, rows: int = 200, labels: str = "abcde") -> list[list[str]]:
    generator = np.random.default_rng(seed)
    return [[label for label in labels if generator.random() < 0.3] for _ in range(rows)]


def test_values_are_those_of_scikit_learn():
    gold, predicted = random_sets(0), random_sets(1)
    encode = MultiLabelBinarizer(classes=list("abcde"))
    a, b = encode.fit_transform(gold), encode.transform(predicted)
    expected = [f1_score(a, b, average="macro"), f1_score(a, b, average="micro"), accuracy_score(a, b)]
    assert list(metrics.compute(NAMES, gold, predicted).values()) == pytest.approx(expected)


@pytest.mark.parametrize("name", NAMES)
def test_sums_over_examples_give_the_metric(name):
    gold, predicted = random_sets(2), random_sets(3)
    sums = metrics.about(name).sums
    counts = sums.of_examples(gold, predicted)
    total = np.asarray(counts.sum(axis=0)).reshape(1, -1)
    assert sums.value(total)[0] == pytest.approx(metrics.compute([name], gold, predicted)[name])


def test_a_single_label_is_not_taken_for_a_set_of_letters():
    with pytest.raises(DataError, match="example 1 has the label 'ab'"):
        metrics.compute(["subset_accuracy"], [["a"], "ab"], [["a"], ["b"]])


def test_scores_of_each_label():
    found = {s.label: s for s in scores_by_label([["a", "b"], ["a"], []], [["a"], ["a", "b"], ["b"]])}
    assert (found["a"].support, found["a"].f1, found["b"].precision, found["b"].recall.value) == (2, 1.0, 0.0, 0.0)


def test_baselines_predict_label_sets():
    words = {"a": "apple", "b": "bread", "c": "cheese"}
    labels = random_sets(4, labels="abc")
    texts = [" ".join(words[label] for label in row) + " and more" for row in labels]
    rows = Examples({"text": texts}, labels, "d")
    splits = rows.take(range(120)), rows.take(range(120, 160)), rows.take(range(160, 200))
    learned = svm(*splits, metric=NAMES[0], seed=0)
    assert metrics.compute(NAMES[:1], splits[2].labels, learned.predictions)[NAMES[0]] > 0.95
    assert majority(*splits, metric=NAMES[0], seed=0).predictions[0] == []


def test_the_evaluation_has_labels_and_calibration_but_no_confusion_matrix():
    rows = Examples({"text": ["x", "y", "z"]}, [["a"], ["a", "b"], []], "d")
    scores = [{"a": 0.9, "b": 0.1}, {"a": 0.8, "b": 0.2}, {"a": 0.3, "b": 0.1}]
    facts = evaluate_rows(Predicted(rows, NAMES, [["a"], ["a"], []], scores), "m", "d")
    assert facts.errors == 1 and facts.matrix is None and facts.label_errors is None
    assert [item.label for item in facts.classes] == ["a", "b"]
    assert facts.calibration is not None and facts.calibration.accuracy == pytest.approx(0.5)
