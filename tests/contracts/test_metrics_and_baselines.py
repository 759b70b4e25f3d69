"""Every metric and every baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from headstart.core import registry
from headstart.core.contracts import Examples
from headstart.core.randomness import generator
from headstart.evaluation.metrics import REGRESSION

BINARY = [0, 1, 1, 0, 1, 0, 0, 1, 1, 0]


def test_a_metric_is_highest_where_all_is_right(metric):
    """1.0 is right throughout and higher is better: models are selected by that."""
    measure = registry.resolve("metrics", metric)
    perfect = measure(BINARY, list(BINARY))
    assert isinstance(perfect, float)
    assert perfect == pytest.approx(1.0)
    one_wrong = [1 - BINARY[0], *BINARY[1:]]
    reversed_ = [1 - label for label in BINARY]
    assert measure(BINARY, reversed_) < measure(BINARY, one_wrong) < perfect


@pytest.mark.parametrize("constant", [0, 1])
def test_a_metric_is_finite_on_constant_predictions(metric, constant):
    measure = registry.resolve("metrics", metric)
    for gold in (BINARY, [constant] * 4, [1 - constant] * 4):
        value = measure(gold, [constant] * len(gold))
        assert math.isfinite(value) and value <= 1.0


def test_a_metric_takes_the_labels_of_its_data(metric):
    measure = registry.resolve("metrics", metric)
    gold = [0.5, 2.25, -1.0, 3.5] if metric in REGRESSION else ["no", "yes", "yes", "no"]
    assert measure(gold, list(gold)) == pytest.approx(1.0)
    assert measure(np.array(gold), np.array(gold)) == pytest.approx(1.0)


class Sealed(Sequence):
    """Labels that may be counted and never read."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, place):
        raise AssertionError("a label of the test rows was read")

    def __iter__(self):
        raise AssertionError("a label of the test rows was read")


def split(count, name, *, regression, columns=("text",)):
    """Texts in which the word "good" tells the label; two in three are good."""
    chance = generator(0, 0, count, f"toy {name}")
    labels = [int(value) for value in chance.random(count) < 0.67]
    texts = {column: [f"a {'good' if y else 'bad'} day {chance.integers(9)}" for y in labels] for column in columns}
    return Examples(texts, [y + 0.5 for y in labels] if regression else [("bad", "good")[y] for y in labels], name)


@pytest.mark.parametrize("columns", [("text",), ("text", "other")], ids=["one text", "a pair"])
@pytest.mark.parametrize("name", ["accuracy", "spearman"])
def test_a_baseline_predicts_and_never_reads_test_labels(baseline, name, columns):
    regression = name in REGRESSION
    train, validation, test = (
        split(count, which, regression=regression, columns=columns)
        for count, which in ((60, "train"), (30, "validation"), (24, "test"))
    )
    run = registry.resolve("baselines", baseline)
    sealed = replace(test, labels=Sealed(len(test)))
    result = run(train, validation, sealed, metric=name, seed=0)
    assert len(result.predictions) == len(test)
    if regression:
        assert np.isfinite(np.asarray(result.predictions, dtype=float)).all()
    else:
        assert set(result.predictions) <= set(train.labels)
    assert result.seconds >= 0
    again = run(train, validation, sealed, metric=name, seed=0)
    assert again.predictions == result.predictions
    score = registry.resolve("metrics", name)(test.labels, result.predictions)
    assert math.isfinite(score) and score >= (0.0 if regression else 0.5)
