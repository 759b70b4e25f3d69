"""Metrics: known values, agreement across label types, and inputs on which a correlation is undefined."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from headstart.core import registry
from headstart.core.errors import DataError, RecipeError
from headstart.evaluation.correlations import pearson, spearman
from headstart.evaluation.labels import accuracy, f1, macro_f1, matthews
from headstart.evaluation.metrics import about, compute

GOLD = [0, 0, 0, 1, 1, 1, 1, 0]
PREDICTED = [0, 1, 0, 1, 0, 1, 1, 0]


def test_known_values_by_hand() -> None:
    # 3 true positives, 1 false positive, 1 false negative, 3 true negatives
    assert accuracy(GOLD, PREDICTED) == pytest.approx(6 / 8)
    assert f1(GOLD, PREDICTED) == pytest.approx(2 * 3 / (2 * 3 + 1 + 1))
    assert macro_f1(GOLD, PREDICTED) == pytest.approx(0.75)
    assert matthews(GOLD, PREDICTED) == pytest.approx((3 * 3 - 1 * 1) / 16)


def test_f1_is_of_the_second_label_in_sorted_order() -> None:
    gold, predicted = ["no", "yes", "yes", "no"], ["no", "yes", "no", "no"]
    assert f1(gold, predicted) == pytest.approx(sk.f1_score(gold, predicted, pos_label="yes"))
    assert f1(gold, predicted) != pytest.approx(sk.f1_score(gold, predicted, pos_label="no"))


def test_labels_of_text_numbers_and_arrays_agree() -> None:
    as_text = [["neg", "pos"][label] for label in GOLD], [["neg", "pos"][label] for label in PREDICTED]
    for metric in (accuracy, f1, macro_f1, matthews):
        assert metric(*as_text) == metric(GOLD, PREDICTED) == metric(np.array(GOLD), PREDICTED)


def test_more_than_two_labels_have_no_f1() -> None:
    with pytest.raises(DataError, match=r"f1 got 3 labels.*defined for two.*macro_f1"):
        f1([0, 1, 2], [0, 1, 1])


@pytest.mark.parametrize("metric", [pearson, spearman])
@pytest.mark.parametrize("predicted", [[2.0] * 4, [0.1 + 0.2] * 4])
def test_a_constant_prediction_has_zero_correlation(metric: Any, predicted: list[float]) -> None:
    assert metric([1.0, 2.0, 3.0, 4.0], predicted) == 0.0
    assert metric(predicted, [1.0, 2.0, 3.0, 4.0]) == 0.0


def test_one_example_has_no_correlation_and_one_label_no_matthews() -> None:
    assert pearson([1.0], [2.0]) == spearman([1.0], [2.0]) == 0.0
    assert matthews([0, 1, 1], [1, 1, 1]) == 0.0
    assert f1([0, 0], [0, 0]) == 0.0


def test_correlations_of_order_and_of_size_differ() -> None:
    gold, predicted = [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 400.0]
    assert spearman(gold, predicted) == pytest.approx(1.0)
    assert 0.7 < pearson(gold, predicted) < 0.8


@pytest.mark.parametrize(
    ("metric", "gold", "predicted", "words"),
    [
        (accuracy, [1, 2], [1], "2 gold values and 1 predictions"),
        (accuracy, [], [], "no examples"),
        (accuracy, [0, 1], ["0", "1"], "gold labels are int, predicted labels str"),
        (pearson, [1.0, 2.0], [1.0, math.nan], "predicted value 1 is nan"),
        (spearman, ["good", "bad"], ["bad", "good"], "gold value is not a number"),
    ],
)
def test_invalid_inputs_are_refused_with_a_message(metric: Any, gold: Any, predicted: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        metric(gold, predicted)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
@settings(max_examples=30, deadline=None)
def test_every_label_metric_is_in_its_range(pairs: list[tuple[int, int]]) -> None:
    gold, predicted = zip(*pairs, strict=True)
    assert 0.0 <= accuracy(gold, predicted) <= 1.0
    assert 0.0 <= macro_f1(gold, predicted) <= 1.0
    assert -1.0 - 1e-9 <= matthews(gold, predicted) <= 1.0 + 1e-9
    assert accuracy(gold, gold) == 1.0 == macro_f1(gold, gold)


def test_compute_uses_the_registry_and_keeps_the_order() -> None:
    assert list(compute(["matthews", "accuracy"], GOLD, PREDICTED)) == ["matthews", "accuracy"]
    with pytest.raises(RecipeError, match="did you mean 'accuracy'"):
        compute(["acuracy"], GOLD, PREDICTED)


def test_every_registered_metric_has_a_line_of_help() -> None:
    for entry in registry.describe("metrics"):
        assert entry.help.endswith("."), entry.name
        if about(entry.name).of in ("label", "number"):
            assert compute([entry.name], GOLD, GOLD)[entry.name] == pytest.approx(1.0)


def test_families_group_the_metrics_that_may_be_averaged() -> None:
    families = {name: about(name).family for name in registry.names("metrics")}
    assert families["accuracy"] == families["token_accuracy"] == families["squad_exact_match"]
    assert families["f1"] == families["macro_f1"] == families["seqeval_f1"] == families["squad_f1"]
    assert families["pearson"] == families["spearman"]
    assert len({families[name] for name in ("accuracy", "f1", "matthews", "spearman", "bleu", "bits_per_byte")}) == 6
    assert families["bleu"] == "bleu", "a metric without a family is its own"
