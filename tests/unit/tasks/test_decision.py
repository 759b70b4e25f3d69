"""Class weights, thresholds and temperature scaling of classification."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from headstart.core.data import Examples, InputSpec
from headstart.core.errors import RecipeError
from headstart.tasks import decision
from headstart.tasks.classify import Classify
from headstart.tasks.source import CheckpointFolder


def task_of(labels, **settings) -> Classify:
    task = Classify(Classify.Config.model_validate(settings))
    task.fit_labels(Examples({"text": list(map(str, labels))}, labels, "d.csv"))
    return task


def test_balanced_weights_are_those_of_scikit_learn():
    from sklearn.utils.class_weight import compute_class_weight

    golds = ["a"] * 7 + ["b"] * 2 + ["c"]
    expected = compute_class_weight("balanced", classes=np.array(["a", "b", "c"]), y=np.array(golds))
    assert decision.balanced_weights(["a", "b", "c"], golds) == pytest.approx(expected.tolist())


def test_the_loss_uses_the_weights(tiny_tokenizer, checkpoint):
    labels = ["a", "a", "a", "b"]
    task = task_of(labels, class_weight={"b": 5.0})
    model = CheckpointFolder(checkpoint("bert"), task, 0).pretrained().eval()
    spec = InputSpec(tiny_tokenizer, "encoder", 16)
    batch = task.collate(task.encode(Examples({"text": labels}, labels, "d.csv"), spec), spec)
    expected = F.cross_entropy(task.logits(model, batch), batch["labels"], torch.tensor([1.0, 5.0]), reduction="sum")
    torch.testing.assert_close(task.loss(model, batch), expected)


def test_a_threshold_moves_the_decision_between_two_labels():
    logits = [np.array([0.0, np.log(p / (1 - p))]) for p in (0.2, 0.35, 0.6)]
    assert task_of(["n", "y"]).decode(logits, [], None) == ["n", "n", "y"]  # type: ignore[arg-type]
    assert task_of(["n", "y"], threshold=0.3).decode(logits, [], None) == ["n", "y", "y"]  # type: ignore[arg-type]


def test_a_tuned_threshold_maximizes_the_metric_of_the_task():
    task = task_of(["n", "y"], threshold="tuned", metric="f1")
    logits = [np.array([0.0, -4 + 0.1 * i]) for i in range(40)]
    gold = ["n"] * 30 + ["y"] * 10
    chosen = task.fit_decision(logits, gold)
    task.set_decision(chosen)
    assert task.decode(logits, [], None) == gold  # type: ignore[arg-type]


def test_a_threshold_needs_two_labels_and_labels():
    with pytest.raises(RecipeError, match=r"task\.threshold is set, but d\.csv has 3 labels"):
        task_of(["a", "b", "c"], threshold=0.3)
    with pytest.raises(ValidationError, match="threshold needs labels"):
        Classify.Config.model_validate({"regression": True, "threshold": 0.3})


def test_scaling_the_output_layer_divides_the_logits_that_a_saved_model_gives(tmp_path, tiny_tokenizer, checkpoint):
    from transformers import AutoModelForSequenceClassification

    task = task_of(["a", "b", "c"])
    model = CheckpointFolder(checkpoint("bert"), task, 0).pretrained().eval()
    inputs = {"input_ids": torch.tensor([[1, 2, 3, 4]])}
    before = model(**inputs).logits
    decision.scale_output(model, 3, 1 / 2.5)
    model.save_pretrained(tmp_path)
    after = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()(**inputs).logits
    torch.testing.assert_close(after, before / 2.5)


def test_the_temperature_of_overconfident_logits_is_found():
    generator = np.random.default_rng(0)
    true_logits = generator.normal(0, 1, (4000, 3))
    gumbel = generator.gumbel(size=true_logits.shape)
    gold = ["abc"[i] for i in (true_logits + gumbel).argmax(1)]
    task = task_of(["a", "b", "c"], temperature_scaling=True)
    assert task.fit_decision(list(2 * true_logits), gold)["temperature"] == pytest.approx(2.0, rel=0.05)
