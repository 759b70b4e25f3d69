"""Every metric and every baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from headstart.core import registry
from headstart.core.data import Examples
from headstart.core.randomness import generator
from headstart.evaluation.baselines import NotApplicable
from headstart.evaluation.metrics import about
from headstart.evaluation.resampling import resampled

BINARY = [0, 1, 1, 0, 1, 0, 0, 1, 1, 0]
TAGS = [["B-PER", "I-PER", "O"], ["O", "B-LOC"], ["B-PER"], ["O", "O", "B-LOC", "I-LOC"]]
SETS = [["a"], ["a", "b"], ["b"], ["a"], []]
TEXTS = ["In the beginning God created the heaven", ["And the earth was without form", "The earth had no form"]]
ANSWERS = [{"text": ["the king", "king David"], "answer_start": [4, 8]}, {"text": [], "answer_start": []}]
# Gold values of each kind, predictions that are partly wrong and such as are wrong throughout.
TOYS = {
    "label": (BINARY, [1 - BINARY[0], *BINARY[1:]], [1 - label for label in BINARY]),
    "number": (BINARY, [1 - BINARY[0], *BINARY[1:]], [1 - label for label in BINARY]),
    "label set": (SETS, [["b"], *SETS[1:]], [["c"] for _ in SETS]),
    "labels": (TAGS, [["O"] * 3, *TAGS[1:]], [["B-ORG" for _ in tags] for tags in TAGS]),
    "text": (TEXTS, [TEXTS[0], "And the earth was void of any form"], ["x y z", "q"]),
    "answers": (ANSWERS, ["King Saul", ""], ["nobody", "somebody"]),
    "ranking": ([["a"], ["b", "c"], ["d"]], [["a"], ["b", "x", "c"], ["y", "d"]], [["x"], ["x", "y"], ["x"]]),
    "likelihood": tuple([{"nats": nats * n, "tokens": n, "bytes": 4 * n} for n in (3, 5, 8)] for nats in (0, 1, 2)),
}


def test_a_metric_is_best_where_all_is_right(metric):
    """1.0 is right throughout and higher is better, unless the metric says otherwise: models are selected by that."""
    known, measure = about(metric), registry.resolve("metrics", metric)
    assert known.of in TOYS, f"TOYS needs gold values of the kind {known.of!r}"
    gold, partly, wrong = TOYS[known.of]
    values = [measure(gold, predicted) for predicted in (list(gold), partly, wrong)]
    assert all(isinstance(value, float) and math.isfinite(value) for value in values)
    if known.lower_is_better:
        assert values[0] < values[1] < values[2]
    else:
        assert values[0] == pytest.approx(1.0) and values[0] > values[1] > values[2]


def test_sums_over_the_examples_give_the_metric(metric):
    """On the whole and on resamples of it, drawn examples counting as often as they were drawn."""
    gold, partly, wrong = TOYS[about(metric).of]
    measure = registry.resolve("metrics", metric)
    for predicted in (list(gold), partly, wrong):
        (fast,) = resampled(metric, gold, [predicted])
        counts = np.stack([np.ones(len(gold)), 1 + np.arange(len(gold)) % 3])
        for row, value in zip(counts, fast(counts), strict=True):
            drawn = np.repeat(np.arange(len(gold)), row.astype(int))
            assert value == pytest.approx(measure([gold[i] for i in drawn], [predicted[i] for i in drawn]), abs=1e-9)


@pytest.mark.parametrize("constant", [0, 1])
def test_a_metric_is_finite_on_constant_predictions(metric, constant):
    if about(metric).of not in ("label", "number"):
        pytest.skip("of labels and numbers alone can all predictions be the same")
    measure = registry.resolve("metrics", metric)
    for gold in (BINARY, [constant] * 4, [1 - constant] * 4):
        value = measure(gold, [constant] * len(gold))
        assert math.isfinite(value) and value <= 1.0


def test_a_metric_takes_the_labels_of_its_data(metric):
    measure, kind = registry.resolve("metrics", metric), about(metric).of
    if kind not in ("label", "number"):
        pytest.skip("other gold values have one form")
    gold = [0.5, 2.25, -1.0, 3.5] if kind == "number" else ["no", "yes", "yes", "no"]
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
    regression = about(name).of == "number"
    train, validation, test = (
        split(count, which, regression=regression, columns=columns)
        for count, which in ((60, "train"), (30, "validation"), (24, "test"))
    )
    run = registry.resolve("baselines", baseline)
    sealed = replace(test, labels=Sealed(len(test)))
    try:
        result = run(train, validation, sealed, metric=name, seed=0)
    except NotApplicable as reason:
        pytest.skip(f"it is no baseline for such rows: {reason}")
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


def test_a_baseline_answers_or_says_why_not(baseline, metric):
    """Every kind of gold value: as many predictions as rows, or a reason in words."""
    gold, *_ = TOYS[about(metric).of]
    words = [
        [f"w{len(str(value)) + place}" for place in range(len(value))] for value in gold if isinstance(value, list)
    ]
    rows = Examples({"words": words} if words else {"text": [f"a text {value}" for value in gold]}, gold, "toy")
    run = registry.resolve("baselines", baseline)
    try:
        found = run(rows, rows, replace(rows, labels=Sealed(len(rows))), metric=metric, seed=0).predictions
    except NotApplicable as reason:
        assert len(str(reason).split()) > 4
        return
    assert len(found) == len(gold)
    assert math.isfinite(registry.resolve("metrics", metric)(gold, found))
