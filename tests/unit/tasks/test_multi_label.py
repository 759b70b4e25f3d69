"""Multi-label classification."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from headstart.core.data import Examples, InputSpec
from headstart.core.errors import DataError, RecipeError
from headstart.tasks import labelled
from headstart.tasks.multi_label import MultiLabel
from headstart.tasks.source import CheckpointFolder


def task_of(labels=None, **settings) -> MultiLabel:
    task = MultiLabel(MultiLabel.Config.model_validate(settings))
    if labels is not None:
        task.fit_labels(rows(labels))
    return task


def rows(labels) -> Examples:
    return Examples({"text": [f"text {i}" for i in range(len(labels))]}, labels, "d.csv")


def spec_of(tokenizer) -> InputSpec:
    return InputSpec(tokenizer, "encoder", 32)


@pytest.mark.parametrize(("weights", "odds"), [(None, (3.5 / 1.5, 1.5 / 3.5)), ("balanced", (1.0, 1.0))])
def test_a_new_head_predicts_the_frequencies_of_the_labels(checkpoint, weights, odds):
    task = task_of([["a"], ["a"], ["a", "b"], []], class_weight=weights)
    model = CheckpointFolder(checkpoint("bert"), task, 0).pretrained()
    task.prepare_head(model)
    assert model.classifier.bias.exp().tolist() == pytest.approx(odds, rel=0.4 if weights else 1e-5)
    trained = model.classifier.bias.detach() + 1
    with torch.no_grad():
        model.classifier.bias.copy_(trained)
    task.prepare_head(model)
    assert model.classifier.bias.tolist() == trained.tolist(), "a head that was trained before is kept"


@pytest.mark.parametrize(
    ("name", "content", "settings"),
    [
        ("d.csv", "text,labels\nx,b;a\ny,a\nz,a; b ;b\n", {}),
        ("d.csv", "text,labels\nx,b|a\ny,a\nz,a|b\n", {"separator": "|"}),
        (
            "d.jsonl",
            '{"text":"x","labels":["b","a"]}\n{"text":"y","labels":["a"]}\n{"text":"z","labels":["b","a","b"]}\n',
            {},
        ),
    ],
)
def test_lists_and_separated_texts_are_read_as_sorted_labels(tmp_path, name, content, settings):
    (tmp_path / name).write_text(content)
    examples = labelled.read(tmp_path / name, task_of(**settings).columns("train"))
    assert examples.labels == [["a", "b"], ["a"], ["a", "b"]]


def test_a_row_may_have_no_label(tmp_path, tiny_tokenizer):
    (tmp_path / "d.jsonl").write_text('{"text":"x","labels":["a"]}\n{"text":"y","labels":[]}\n')
    task = task_of()
    examples = labelled.read(tmp_path / "d.jsonl", task.columns("train"))
    task.fit_labels(examples)
    assert [feature["labels"] for feature in task.encode(examples, spec_of(tiny_tokenizer))] == [[1.0], [0.0]]


def test_a_single_label_task_names_this_one_for_lists(tmp_path):
    from headstart.tasks.classify import Classify

    (tmp_path / "d.jsonl").write_text('{"text":"x","label":["a","b"]}\n')
    with pytest.raises(DataError, match=r"set task\.kind to multi_label"):
        labelled.read(tmp_path / "d.jsonl", Classify(Classify.Config()).columns("train"))


def test_labels_above_the_threshold_are_predicted():
    task = task_of([["a"], ["b"], ["a", "c"]], threshold=0.6)
    logits = [np.array([3.0, -3.0, 0.3]), np.array([-1.0, -2.0, -3.0])]
    assert task.decode(logits, [], None) == [["a"], []]  # type: ignore[arg-type]
    assert task.scores(logits, [], None)[0]["c"] == pytest.approx(1 / (1 + np.exp(-0.3)))  # type: ignore[arg-type]


def test_a_tuned_threshold_finds_what_half_misses_and_is_restored():
    gold = [["a"], ["a"], ["b"], ["b"], ["a", "b"], ["b"]]
    task = task_of(gold, threshold="tuned")
    # All probabilities are below 0.5, but ordered correctly.
    logits = np.array([[-1.0 if label in labels else -3.0 for label in ("a", "b")] for labels in gold])
    assert task.decode(list(logits), [], None) == [[]] * 6  # type: ignore[arg-type]
    chosen = task.fit_decision(list(logits), gold)
    assert 0.05 < chosen["threshold"] < 0.27
    task.set_decision(chosen)
    assert task.decode(list(logits), [], None) == gold  # type: ignore[arg-type]
    again = task_of(threshold="tuned")
    again.restore({**task.state(), "decision": chosen})
    assert again.decode(list(logits), [], None) == gold  # type: ignore[arg-type]
    task.set_decision({})
    assert task.threshold == 0.5


def test_the_temperature_of_overconfident_logits_is_found():
    generator = np.random.default_rng(0)
    true_logits = generator.normal(0, 1.5, (4000, 2))
    present = generator.random(true_logits.shape) < 1 / (1 + np.exp(-true_logits))
    gold = [[label for label, flag in zip("ab", row, strict=True) if flag] for row in present]
    task = task_of([["a"], ["b"]], temperature_scaling=True)
    assert task.fit_decision(list(3.0 * true_logits), gold)["temperature"] == pytest.approx(3.0, rel=0.05)


def test_the_loss_is_the_mean_over_labels_and_weights_are_balanced(tiny_tokenizer, checkpoint):
    gold = [["a"], ["a", "b"], ["a"], []]
    plain, weighted = task_of(gold), task_of(gold, class_weight="balanced")
    model = CheckpointFolder(checkpoint("bert"), plain, 0).pretrained().eval()
    spec = spec_of(tiny_tokenizer)
    batch = plain.collate(plain.encode(rows(gold), spec), spec)
    logits = plain.logits(model, batch)
    expected = F.binary_cross_entropy_with_logits(logits, batch["labels"], reduction="none")
    torch.testing.assert_close(plain.loss(model, batch), expected.mean(1).sum())
    # Of four rows, three have a and one has b.
    weights = torch.tensor([[4 / 6, 4 / 6], [4 / 6, 2.0], [4 / 6, 4 / 6], [2.0, 4 / 6]])
    torch.testing.assert_close(weighted.loss(model, batch), (expected * weights).mean(1).sum())
    assert plain.weight(batch) == 4


def test_a_weight_of_an_unknown_label_is_rejected():
    with pytest.raises(RecipeError, match=r"task\.class_weight names 'x'"):
        task_of([["a"], ["b"]], class_weight={"x": 2.0})


def test_a_label_that_no_training_row_has_is_reported_with_its_row(tiny_tokenizer):
    with pytest.raises(DataError, match=r"d\.csv, row 2 has the label 'c'"):
        task_of([["a"], ["b"]]).encode(rows([["a"], ["b", "c"]]), spec_of(tiny_tokenizer))
