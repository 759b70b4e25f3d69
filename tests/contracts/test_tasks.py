"""The contract of every task: labels from training rows only, features, loss and predictions."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers
from tests.contracts.conftest import DATA_KINDS

from headstart.core import registry
from headstart.core.contracts import Task
from headstart.core.data import InputSpec
from headstart.evaluation import metrics
from headstart.stages.finetune.learner import predict
from headstart.tasks import labelled
from headstart.tasks.source import CheckpointFolder


@pytest.fixture(scope="module")
def source(task_case, checkpoint):
    return CheckpointFolder(checkpoint(type(task_case.task).families[0], None), task_case.task, seed=0)


@pytest.fixture(scope="module")
def spec(source) -> InputSpec:
    return source.input_spec(64)


@pytest.fixture(scope="module")
def training(task_case, spec):
    return task_case.task.encode(task_case.train, spec, training=True)


@pytest.fixture(scope="module")
def features(task_case, spec):
    return task_case.task.encode(task_case.validation, spec)


@pytest.fixture(scope="module")
def model(source):
    return source.pretrained().eval()


def skip_without_loss(task_case):
    if not task_case.task.learns:
        pytest.skip("this task has no training loss")


def test_it_keeps_the_protocol(task_case):
    task = task_case.task
    assert isinstance(task, Task)
    assert set(task.families) <= set(registry.names("backbones"))
    assert all(hasattr(transformers, task.auto_class(family)) for family in task.families)


def test_its_toy_rows_are_valid(task_case):
    """The rows of `toy_examples` pass the checks of the task's columns."""
    for split, rows in (("train", task_case.train), ("validation", task_case.validation)):
        columns = task_case.task.columns(split)
        assert [column.name for column in columns if not column.is_gold] == list(rows.columns)
        assert sum(column.is_gold for column in columns) <= 1
        for column in columns:
            values = rows.labels if column.is_gold else rows.columns[column.name]
            assert all(column.kind.fits(value) for value in values), column.name
            assert column.setting.removeprefix("task.") in type(task_case.task.config).model_fields


def test_rows_are_read_back_from_a_file(task_case, tmp_path):
    """Gold values and columns are the same after a round trip through JSON Lines."""
    rows, columns = task_case.train, task_case.task.columns("train")
    gold = next((column.name for column in columns if column.is_gold), None)
    table = {**rows.columns, **({} if gold is None else {gold: rows.labels})}
    lines = [json.dumps({name: values[i] for name, values in table.items()}) for i in range(len(rows))]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    examples = labelled.read(tmp_path / "rows.jsonl", columns)
    assert examples.columns == {name: list(values) for name, values in rows.columns.items()}
    assert list(examples.labels) == list(rows.labels)


def test_labels_come_from_the_training_rows_only(task_case, spec):
    """The same training rows give the same head in any order, and encoding other rows changes nothing."""
    other = task_case.build()
    other.fit_labels(task_case.train.take(list(reversed(range(len(task_case.train))))))
    assert other.head_settings() == task_case.task.head_settings()
    other.encode(task_case.validation, spec)
    assert other.head_settings() == task_case.task.head_settings()


def test_the_state_restores_the_task_through_json(task_case, features, spec, model):
    restored = task_case.build()
    restored.restore(json.loads(json.dumps(task_case.task.state())))
    assert restored.head_settings() == task_case.task.head_settings()
    assert restored.metrics() == task_case.task.metrics()
    assert predict(model, restored, features, spec) == predict(model, task_case.task, features, spec)


def test_there_is_one_prediction_for_each_example(task_case, model, features, spec):
    owners = [feature.get("example", i) for i, feature in enumerate(features)]
    assert owners == sorted(owners) and set(owners) == set(range(len(task_case.validation)))
    predictions = predict(model, task_case.task, features, spec)
    assert len(predictions) == len(task_case.validation)
    assert json.loads(json.dumps(predictions)) == predictions, "predictions are stored as JSON"
    scores = metrics.compute(task_case.task.metrics(), task_case.validation.labels, predictions)
    assert all(np.isfinite(value) for value in scores.values())


def test_collate_pads_and_loses_no_tokens(task_case, training, features, spec):
    task = task_case.task
    for some in (training, features):
        selected = sorted(some[:8], key=task.length)
        batch = task.collate(selected, spec)
        assert {len(tensor) for tensor in batch.values()} == {len(selected)}
        assert batch["input_ids"].shape[-1] == max(map(task.length, selected)) <= 64
        for row, feature in enumerate(selected):
            mask = batch["attention_mask"][row].bool()
            flat = np.concatenate([np.ravel(ids) for ids in feature["input_ids"]]).tolist()
            assert batch["input_ids"][row][mask].tolist() == flat
            assert (batch["input_ids"][row][~mask] == spec.pad).all()
        assert task.tokens(batch) >= batch["input_ids"].numel()


def test_padding_does_not_change_the_output(task_case, model, features, spec):
    task = task_case.task
    short, long = (function(features, key=task.length) for function in (min, max))
    assert task.length(short) < task.length(long)
    with torch.no_grad():
        (alone,) = task.predict(model, task.collate([short], spec))
        padded, _ = task.predict(model, task.collate([short, long], spec))
    assert alike(padded, alone)


def test_the_loss_is_a_finite_sum_over_the_weight(task_case, model, training, spec):
    skip_without_loss(task_case)
    task = task_case.task
    with torch.no_grad():
        losses = [task.loss(model, task.collate(some, spec)).item() for some in (training[:3], training[3:8])]
        together = task.loss(model, task.collate(training[:8], spec)).item()
    assert np.isfinite(together) and together == pytest.approx(sum(losses), rel=1e-4)
    assert all(loss > 0 for loss in losses)
    weights = [task.weight(task.collate(some, spec)) for some in (training[:3], training[3:8], training[:8])]
    assert weights[0] > 0 and weights[2] == weights[0] + weights[1]


def test_metrics_are_registered(task_case):
    names = task_case.task.metrics()
    assert names and len(set(names)) == len(names)
    assert set(names) <= set(registry.names("metrics"))
    gold = task_case.train.labels
    if all(metrics.about(name).of in DATA_KINDS for name in names):
        assert metrics.compute(names, gold, gold) == pytest.approx(dict.fromkeys(names, 1.0))


def test_the_configured_metric_comes_first(task_case):
    if "metric" not in type(task_case.task).Config.model_fields:
        pytest.skip("this task has no metric setting")
    other = task_case.task.metrics()[-1]
    task = type(task_case.task)(task_case.task.config.model_copy(update={"metric": other}))
    task.fit_labels(task_case.train)
    assert task.metrics()[0] == other
    assert set(task.metrics()) == set(task_case.task.metrics())


def test_prepare_head_does_not_raise_the_loss(task_case, source, training, spec):
    skip_without_loss(task_case)
    model, batch = source.pretrained().eval(), task_case.task.collate(training, spec)
    with torch.no_grad():
        before = task_case.task.loss(model, batch).item()
        task_case.task.prepare_head(model)
        after = task_case.task.loss(model, batch).item()
    assert np.isfinite(after) and after <= before


def alike(one, other) -> bool:
    """Whether two raw outputs agree: arrays up to rounding errors, other values exactly."""
    if isinstance(one, np.ndarray):
        return one.shape == other.shape and np.allclose(one, other, atol=1e-5, rtol=1e-4)
    return one == other
