"""Classification and regression."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from headstart.core.data import Examples, InputSpec
from headstart.core.errors import DataError
from headstart.tasks.classify import Classify
from headstart.tasks.source import CheckpointFolder


def task_of(labels=None, **settings) -> Classify:
    task = Classify(Classify.Config.model_validate(settings))
    if labels is not None:
        task.fit_labels(rows(labels))
    return task


def spec_of(tokenizer, max_length=32) -> InputSpec:
    return InputSpec(tokenizer, "encoder", max_length)


def rows(labels, **columns) -> Examples:
    return Examples(columns or {"text": [f"text {i}" for i in range(len(labels))]}, labels, "d.csv")


@pytest.mark.parametrize("labels", [["b", "a", "b"], [3, 1, 2, 1], [True, False], [0.5, 2.0], ["1", "10", "2"]])
def test_decoded_labels_keep_their_type(labels, tiny_tokenizer):
    task = task_of(labels)
    encoded = task.encode(rows(labels), spec_of(tiny_tokenizer))
    logits = np.eye(len(task.labels), dtype=np.float32)[[e["labels"] for e in encoded]]
    decoded = task.decode(list(logits), encoded, spec_of(tiny_tokenizer))
    assert decoded == labels and [type(v) for v in decoded] == [type(v) for v in labels]
    assert task.head_settings()["id2label"] == {i: str(v) for i, v in enumerate(sorted(set(labels)))}


def test_the_order_of_labels_does_not_depend_on_the_order_of_rows():
    assert task_of(["c", "a", "b"]).head_settings() == task_of(["b", "c", "a", "a"]).head_settings()


def test_an_unknown_label_is_reported_with_its_row(tiny_tokenizer):
    with pytest.raises(DataError) as caught:
        task_of(["a", "b"]).encode(rows(["a", "c"]), spec_of(tiny_tokenizer))
    assert "d.csv, row 2 has the label 'c'" in str(caught.value) and "'a', 'b'" in str(caught.value)


def test_a_single_label_is_rejected():
    with pytest.raises(DataError, match=r"all 3 training rows of d\.csv have the label 'a'"):
        task_of(["a"] * 3)


def test_very_many_labels_suggest_regression():
    with pytest.raises(DataError, match=r"60 different labels in 60 rows.*task\.regression"):
        task_of([i / 7 for i in range(60)])
    assert len(task_of([i // 2 for i in range(120)]).labels) == 60


@pytest.mark.parametrize("labels", [["1", "2"], [True, False], [1.0, "x"]])
def test_regression_needs_numbers(labels):
    with pytest.raises(DataError, match=r"task\.regression needs numbers"):
        task_of(labels, regression=True)


def test_texts_get_special_tokens_and_are_truncated(tiny_tokenizer):
    task = task_of(["a", "b"])
    short, long = task.encode(rows(["a", "b"], text=["In the beginning", "word " * 500]), spec_of(tiny_tokenizer, 24))
    assert (
        short["input_ids"][0] == tiny_tokenizer.cls_token_id and short["input_ids"][-1] == tiny_tokenizer.sep_token_id
    )
    assert len(long["input_ids"]) == 24 and long["input_ids"][-1] == tiny_tokenizer.sep_token_id


def test_pairs_get_separators_and_token_types(tiny_tokenizer, checkpoint):
    task = task_of(["a", "b"], text=["one", "two"])
    pairs = rows(["a", "b"], one=["In the beginning", "x " * 300], two=["God created", "y " * 40])
    tokenizer = CheckpointFolder(checkpoint("bert"), task, 0).tokenizer()
    first, long = task.encode(pairs, spec_of(tokenizer, 64))
    separators = [i for i, token in enumerate(first["input_ids"]) if token == tokenizer.sep_token_id]
    assert len(separators) == 2
    assert first["token_type_ids"] == [0] * (separators[0] + 1) + [1] * (separators[1] - separators[0])
    assert len(long["input_ids"]) == 64 and long["token_type_ids"].count(1) > 20, "the longer text is truncated first"


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_pairs_run_through_a_model(kind, checkpoint):
    task = task_of(["a", "b"], text=["one", "two"])
    source = CheckpointFolder(checkpoint(kind), task, 0)
    spec = source.input_spec(32)
    encoded = task.encode(rows(["a", "b"], one=["In", "the beginning"], two=["God", "created"]), spec)
    batch = task.collate(encoded, spec)
    assert ("token_type_ids" in batch) == (kind == "bert")
    model = source.pretrained().eval()
    with torch.no_grad():
        loss, logits = task.loss(model, batch), task.logits(model, batch)
    assert logits.shape == (2, 2)
    assert float(loss) == pytest.approx(float(torch.nn.functional.cross_entropy(logits, batch["labels"]) * 2), rel=1e-5)


def test_one_text_column_may_be_a_string_and_three_are_rejected():
    assert task_of(text="body").config.text == ["body"]
    with pytest.raises(ValidationError):
        task_of(text=["a", "b", "c"])


def test_regression_starts_at_the_mean_and_scales_the_loss_by_the_variance(checkpoint):
    labels = [10.0, 12.0, 14.0, 20.0]
    task = task_of(labels, regression=True)
    source = CheckpointFolder(checkpoint("bert"), task, 0)
    model = source.pretrained().eval()
    task.prepare_head(model)
    assert model.classifier.bias.item() == pytest.approx(14.0)
    spec = source.input_spec(32)
    encoded = task.encode(rows(labels), spec)
    batch = task.collate(encoded, spec)
    with torch.no_grad():
        loss, logits = float(task.loss(model, batch)), task.logits(model, batch)
    expected = sum((float(y) - x) ** 2 for y, x in zip(logits[:, 0], labels, strict=True)) / np.var(labels)
    assert loss == pytest.approx(expected, rel=1e-4)
    assert task.decode(task.predict(model, batch), encoded, spec) == pytest.approx(logits[:, 0].tolist())
    assert task.head_settings() == {"num_labels": 1, "problem_type": "regression"}


def test_regression_outputs_are_exact_in_bf16(checkpoint):
    """Near 2,000, neighboring bf16 numbers differ by 8."""
    labels = [1990.0, 2000.0, 2010.0, 2021.0]
    task = task_of(labels, regression=True)
    source = CheckpointFolder(checkpoint("bert"), task, 0)
    model, spec = source.pretrained().eval(), source.input_spec(32)
    task.prepare_head(model)
    batch = task.collate(task.encode(rows(labels), spec), spec)
    with torch.no_grad():
        expected = task.logits(model, batch)
        with torch.autocast("cpu", torch.bfloat16):
            logits = task.logits(model, batch)
    torch.testing.assert_close(logits, expected, atol=0.05, rtol=0)


def test_equal_numbers_do_not_divide_by_zero():
    task = task_of([2.0, 2.0], regression=True)
    assert task.scale == 1.0 and math.isfinite(task.center)


@pytest.mark.parametrize(
    ("labels", "settings", "expected"),
    [
        (["a", "b"], {}, ("accuracy", "f1", "matthews")),
        (["a", "b", "c"], {}, ("accuracy", "macro_f1")),
        (["a", "b"], {"metric": "f1"}, ("f1", "accuracy", "matthews")),
        ([1.0, 2.0], {"regression": True}, ("spearman", "pearson")),
        ([1.0, 2.0], {"regression": True, "metric": "pearson"}, ("pearson", "spearman")),
    ],
)
def test_the_selection_metric_comes_first(labels, settings, expected):
    assert task_of(labels, **settings).metrics() == expected


@pytest.mark.parametrize("settings", [{"metric": "spearman"}, {"metric": "f1", "regression": True}])
def test_a_metric_for_other_labels_is_rejected(settings):
    with pytest.raises(ValidationError, match="metric is"):
        task_of(**settings)
