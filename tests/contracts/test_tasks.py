"""Every task: labels from training alone, rows in, predictions out."""

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
from headstart.stages.finetune.cell import predict
from headstart.tasks import labelled
from headstart.tasks.source import CheckpointFolder


@pytest.fixture(scope="module")
def source(task_case, checkpoint):
    return CheckpointFolder(checkpoint(type(task_case.task).families[0], None), task_case.task, seed=0)


@pytest.fixture(scope="module")
def reading(source) -> InputSpec:
    return source.reading(64)


@pytest.fixture(scope="module")
def training(task_case, reading):
    return task_case.task.encode(task_case.train, reading, training=True)


@pytest.fixture(scope="module")
def features(task_case, reading):
    return task_case.task.encode(task_case.validation, reading)


@pytest.fixture(scope="module")
def model(source):
    return source.pretrained().eval()


def learns(task_case):
    if not task_case.task.learns:
        pytest.skip("this task has no loss to train by")


def test_it_keeps_the_protocol(task_case):
    task = task_case.task
    assert isinstance(task, Task)
    assert set(task.families) <= set(registry.names("backbones"))
    assert all(hasattr(transformers, task.auto_class(family)) for family in task.families)


def test_its_toy_rows_are_such_as_it_would_read(task_case):
    """What `toy_examples` makes passes the checks of the columns that the task names."""
    for split, rows in (("train", task_case.train), ("validation", task_case.validation)):
        columns = task_case.task.columns(split)
        assert [column.name for column in columns if not column.is_gold] == list(rows.columns)
        assert sum(column.is_gold for column in columns) <= 1
        for column in columns:
            values = rows.labels if column.is_gold else rows.columns[column.name]
            assert all(column.kind.fits(value) for value in values), column.name
            assert column.setting.removeprefix("task.") in type(task_case.task.config).model_fields


def test_rows_survive_a_file(task_case, tmp_path):
    """Gold values and columns come back from JSON lines as they were."""
    rows, columns = task_case.train, task_case.task.columns("train")
    gold = next((column.name for column in columns if column.is_gold), None)
    table = {**rows.columns, **({} if gold is None else {gold: rows.labels})}
    lines = [json.dumps({name: values[i] for name, values in table.items()}) for i in range(len(rows))]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    found = labelled.read(tmp_path / "rows.jsonl", columns)
    assert found.columns == {name: list(values) for name, values in rows.columns.items()}
    assert list(found.labels) == list(rows.labels)


def test_labels_come_from_training_alone(task_case, reading):
    """The same training rows give the same head, whatever their order, and encoding others changes nothing."""
    again = task_case.build()
    again.fit_labels(task_case.train.take(list(reversed(range(len(task_case.train))))))
    assert again.head_settings() == task_case.task.head_settings()
    again.encode(task_case.validation, reading)
    assert again.head_settings() == task_case.task.head_settings()


def test_what_was_learnt_from_training_travels_through_json(task_case, features, reading, model):
    again = task_case.build()
    again.restore(json.loads(json.dumps(task_case.task.state())))
    assert again.head_settings() == task_case.task.head_settings()
    assert again.metrics() == task_case.task.metrics()
    assert predict(model, again, features, reading) == predict(model, task_case.task, features, reading)


def test_there_is_one_prediction_for_each_example(task_case, model, features, reading):
    owners = [feature.get("example", place) for place, feature in enumerate(features)]
    assert owners == sorted(owners) and set(owners) == set(range(len(task_case.validation)))
    found = predict(model, task_case.task, features, reading)
    assert len(found) == len(task_case.validation)
    assert json.loads(json.dumps(found)) == found, "predictions are kept as JSON"
    scores = metrics.compute(task_case.task.metrics(), task_case.validation.labels, found)
    assert all(np.isfinite(value) for value in scores.values())


def test_collate_pads_and_loses_nothing(task_case, training, features, reading):
    task = task_case.task
    for some in (training, features):
        chosen = sorted(some[:8], key=task.length)
        batch = task.collate(chosen, reading)
        assert {len(tensor) for tensor in batch.values()} == {len(chosen)}
        assert batch["input_ids"].shape[-1] == max(map(task.length, chosen)) <= 64
        for row, feature in enumerate(chosen):
            real = batch["attention_mask"][row].bool()
            flat = np.concatenate([np.ravel(ids) for ids in feature["input_ids"]]).tolist()
            assert batch["input_ids"][row][real].tolist() == flat
            assert (batch["input_ids"][row][~real] == reading.pad).all()
        assert task.tokens(batch) >= batch["input_ids"].numel()


def test_padding_does_not_change_the_output(task_case, model, features, reading):
    task = task_case.task
    short, long = (function(features, key=task.length) for function in (min, max))
    assert task.length(short) < task.length(long)
    with torch.no_grad():
        (alone,) = task.predict(model, task.collate([short], reading))
        beside, _ = task.predict(model, task.collate([short, long], reading))
    assert alike(beside, alone)


def test_the_loss_is_a_finite_sum_over_the_weight(task_case, model, training, reading):
    learns(task_case)
    task = task_case.task
    with torch.no_grad():
        losses = [task.loss(model, task.collate(some, reading)).item() for some in (training[:3], training[3:8])]
        together = task.loss(model, task.collate(training[:8], reading)).item()
    assert np.isfinite(together) and together == pytest.approx(sum(losses), rel=1e-4)
    assert all(loss > 0 for loss in losses)
    weights = [task.weight(task.collate(some, reading)) for some in (training[:3], training[3:8], training[:8])]
    assert weights[0] > 0 and weights[2] == weights[0] + weights[1]


def test_metrics_are_registered(task_case):
    names = task_case.task.metrics()
    assert names and len(set(names)) == len(names)
    assert set(names) <= set(registry.names("metrics"))
    gold = task_case.train.labels
    if all(metrics.about(name).of in DATA_KINDS for name in names):
        assert metrics.compute(names, gold, gold) == pytest.approx(dict.fromkeys(names, 1.0))


def test_the_chosen_metric_selects(task_case):
    if "metric" not in type(task_case.task).Config.model_fields:
        pytest.skip("this task has no choice of metric")
    other = task_case.task.metrics()[-1]
    task = type(task_case.task)(task_case.task.config.model_copy(update={"metric": other}))
    task.fit_labels(task_case.train)
    assert task.metrics()[0] == other
    assert set(task.metrics()) == set(task_case.task.metrics())


def test_prepare_head_is_no_worse_a_start(task_case, source, training, reading):
    learns(task_case)
    model, batch = source.pretrained().eval(), task_case.task.collate(training, reading)
    with torch.no_grad():
        before = task_case.task.loss(model, batch).item()
        task_case.task.prepare_head(model)
        after = task_case.task.loss(model, batch).item()
    assert np.isfinite(after) and after <= before


def alike(one, other) -> bool:
    """Whether two raw outputs agree: arrays to rounding errors, the rest exactly."""
    if isinstance(one, np.ndarray):
        return one.shape == other.shape and np.allclose(one, other, atol=1e-5, rtol=1e-4)
    return one == other
