"""Every task: labels from training alone, rows in, labels out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from headstart.core import registry
from headstart.core.contracts import Examples, Task
from headstart.core.errors import DataError
from headstart.evaluation import metrics
from headstart.tasks.source import CheckpointFolder


@pytest.fixture(scope="module")
def source(task_case, checkpoint):
    return CheckpointFolder(checkpoint(type(task_case.task).families[0], None), task_case.task, seed=0)


@pytest.fixture(scope="module")
def encoded(task_case, source):
    return task_case.task.encode(task_case.train, source.tokenizer(), 64)


@pytest.fixture(scope="module")
def pad(source):
    return source.tokenizer().pad_token_id


@pytest.fixture(scope="module")
def model(source):
    return source.pretrained().eval()


def is_regression(task):
    return task.head_settings().get("num_labels") == 1


def perfect_logits(task, labels):
    """Outputs from which a right decoder gets the labels back."""
    if is_regression(task):
        return labels[:, None].float().numpy()
    classes = torch.nn.functional.one_hot(labels.clamp(min=0), task.head_settings()["num_labels"])
    return 4.0 * classes.float().numpy() - 1.0


def test_it_keeps_the_protocol(task_case):
    task = task_case.task
    assert isinstance(task, Task)
    assert hasattr(transformers, task.auto_class)
    assert set(task.families) <= set(registry.names("backbones"))


def test_labels_come_from_training_alone(task_case, source):
    """The same training rows give the same head, and a label that they do not hold is refused by name."""
    again = task_case.build()
    again.fit_labels(task_case.train.take(list(reversed(range(len(task_case.train))))))
    assert again.head_settings() == task_case.task.head_settings()
    if is_regression(again) or not isinstance(task_case.train.labels[0], str):
        return
    columns = {name: values[:2] for name, values in task_case.validation.columns.items()}
    strange = Examples(columns, [task_case.train.labels[0], "never seen"], "strange.csv")
    with pytest.raises(DataError, match=r"strange\.csv, row 2.*'never seen'"):
        task_case.task.encode(strange, source.tokenizer(), 64)
    assert again.head_settings() == task_case.task.head_settings()


def test_the_head_fits_the_labels(task_case, model, encoded, pad):
    with torch.no_grad():
        logits = task_case.task.logits(model, task_case.task.collate(encoded[:3], pad))
    assert logits.dtype == torch.float32
    assert logits.shape[0] == 3 and logits.shape[-1] == task_case.task.head_settings()["num_labels"]
    assert len(task_case.task.decode(logits.numpy())) == 3


def test_labels_come_back_through_encode_collate_and_decode(task_case, encoded, pad):
    task = task_case.task
    assert len(encoded) == len(task_case.train)
    batch = task.collate(encoded, pad)
    decoded = task.decode(perfect_logits(task, batch["labels"]))
    if is_regression(task):
        assert decoded == pytest.approx(list(task_case.train.labels), rel=1e-6)
    else:
        assert decoded == list(task_case.train.labels)
    assert [type(value) for value in decoded] == [type(value) for value in task_case.train.labels]


def test_collate_pads_and_loses_nothing(task_case, encoded, pad):
    chosen = sorted(encoded[:8], key=lambda example: len(example["input_ids"]))
    batch = task_case.task.collate(chosen, pad)
    assert {len(tensor) for tensor in batch.values()} == {8}
    assert batch["input_ids"].shape[-1] == max(len(example["input_ids"]) for example in chosen) <= 64
    for row, example in enumerate(chosen):
        real = batch["attention_mask"][row].bool()
        assert batch["input_ids"][row][real].tolist() == example["input_ids"]
        assert (batch["input_ids"][row][~real] == pad).all()


def test_padding_does_not_change_the_output(task_case, model, encoded, pad):
    short, long = (function(encoded, key=lambda example: len(example["input_ids"])) for function in (min, max))
    assert len(short["input_ids"]) < len(long["input_ids"])
    with torch.no_grad():
        alone = task_case.task.logits(model, task_case.task.collate([short], pad))
        beside = task_case.task.logits(model, task_case.task.collate([short, long], pad))
    torch.testing.assert_close(beside[:1], alone, atol=1e-5, rtol=1e-4)


def test_loss_is_a_finite_sum(task_case, model, encoded, pad):
    with torch.no_grad():
        together, first, second = (
            task_case.task.loss(model, task_case.task.collate(part, pad)).item()
            for part in (encoded[:2], encoded[:1], encoded[1:2])
        )
    assert np.isfinite(together)
    assert together == pytest.approx(first + second, rel=1e-4)
    assert first > 0 and second > 0


def test_metrics_are_registered_and_perfect_on_gold(task_case):
    names = task_case.task.metrics()
    assert names and len(set(names)) == len(names)
    assert set(names) <= set(registry.names("metrics"))
    gold = task_case.train.labels
    assert metrics.compute(names, gold, gold) == pytest.approx(dict.fromkeys(names, 1.0))


def test_the_chosen_metric_selects(task_case):
    if "metric" not in type(task_case.task).Config.model_fields:
        pytest.skip("this task has no choice of metric")
    other = task_case.task.metrics()[-1]
    task = type(task_case.task)(task_case.task.config.model_copy(update={"metric": other}))
    task.fit_labels(task_case.train)
    assert task.metrics()[0] == other
    assert set(task.metrics()) == set(task_case.task.metrics())


def test_prepare_head_is_no_worse_a_start(task_case, source, encoded, pad):
    model, batch = source.pretrained().eval(), task_case.task.collate(encoded, pad)
    with torch.no_grad():
        before = task_case.task.loss(model, batch).item()
        task_case.task.prepare_head(model)
        after = task_case.task.loss(model, batch).item()
    assert np.isfinite(after)
    assert after < before if is_regression(task_case.task) else after <= before
