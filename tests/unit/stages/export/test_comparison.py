"""The comparison of exports with torch: losses, the choice of a variant, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headstart.core.data import Examples, InputSpec
from headstart.core.errors import ArtifactError
from headstart.stages.export.comparison import BATCHES, Comparison, Measured, Runner, choose, compare
from headstart.stages.export.format import ExportedNetwork
from headstart.stages.export.source import middle_rows
from headstart.tasks.classify import Classify

LABELS = ["no", "yes"]


class Lookup(ExportedNetwork):
    """Answers yes where the first token is at least a limit."""

    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def compute(self, inputs):
        yes = (inputs["input_ids"][:, 0] >= self.limit).astype(np.float32)
        return {"logits": np.stack([1 - yes, yes], axis=1)}


class Rows(Classify):
    """A task whose texts are numbers: the only token of each row."""

    def encode(self, examples, spec, training=False):
        return [{"input_ids": [int(text)]} for text in examples.columns["text"]]


@pytest.fixture
def task():
    task = Rows(Classify.Config())
    task.restore({"labels": LABELS})
    return task


@pytest.fixture
def rows():
    numbers = range(100, 300)
    return Examples({"text": [str(n) for n in numbers]}, ["yes" if n >= 200 else "no" for n in numbers], "rows")


def runner(task, name, limit):
    spec = InputSpec(type("Tokenizer", (), {"pad_token_id": 0})(), "encoder", 8)
    return Runner(name, Lookup(limit), task, spec, 1_000_000)


def measure(task, rows, *limits, tolerance=1.0):
    first = runner(task, "torch", 200)
    exports = [Runner(f"export {n}", Lookup(n), task, first.spec, 500_000) for n in limits]
    features = task.encode(rows, first.spec)
    return compare(rows, features, [first], exports, threads=1, repetitions=2, tolerance=tolerance)


def test_an_equal_export_loses_nothing(task, rows):
    comparison = measure(task, rows, 200)
    reference, export = comparison.models
    assert reference.score == export.score == 1.0
    assert export.loss == 0.0 and export.changed == 0 and export.p_value == 1.0 and export.largest_difference == 0.0
    assert set(export.latency_ms) == {str(count) for count in BATCHES} and min(export.latency_ms.values()) > 0
    assert choose(comparison, ["export 200"]) == "export 200"


def test_a_worse_export_is_refused_with_its_figures(task, rows):
    comparison = measure(task, rows, 220)
    export = comparison.models[1]
    assert export.loss == pytest.approx(10.0) and export.changed == 20 and export.p_value < 0.01
    assert export.low < 10.0 < export.high
    figures = r"export 220 loses 10\.00 points of accuracy .* 20 predictions differ"
    with pytest.raises(ArtifactError, match=figures) as raised:
        choose(comparison, ["export 220"])
    assert "--tolerance is 1 points" in str(raised.value)
    assert choose(measure(task, rows, 220, tolerance=10.1), ["export 220"]) == "export 220"


def test_the_fastest_export_within_the_tolerance_is_kept():
    def measured(name, loss, milliseconds):
        times = {str(count): milliseconds for count in BATCHES}
        return Measured(name, 0.9, 1, times, loss=loss, low=0.0, high=0.0, p_value=1.0)

    figures = {"torch": (0, 9.0), "slow": (0.1, 5.0), "fast": (0.9, 3.0), "bad": (4, 1.0)}
    models = [measured(name, *values) for name, values in figures.items()]
    comparison = Comparison("accuracy", 100.0, 10, "rows", 1, 1, 1.0, models)
    assert choose(comparison, ["slow", "fast", "bad"]) == "fast"


def test_a_comparison_survives_json(task, rows):
    comparison = measure(task, rows, 210)
    assert Comparison.from_dict(comparison.to_dict()) == comparison


def test_rows_of_typical_length_are_timed(task):
    features = [{"input_ids": [1] * n} for n in (9, 1, 5, 4, 6)]
    assert [len(feature["input_ids"]) for feature in middle_rows(task, features, 3)] == [4, 5, 6]
    assert len(middle_rows(task, features, 32)) == 32


def test_tasks_call_an_exported_network_as_one_of_transformers():
    output = Lookup(5)(input_ids=torch.tensor([[4], [5]]))
    assert output.logits.argmax(-1).tolist() == [0, 1] and torch.equal(output[0], output.logits)
