"""Distillation into a task: labels, the teacher's predictions and its layers."""

from __future__ import annotations

import pytest
import torch

from headstart.adaptation.distillation import Distillation
from headstart.core.data import Examples
from headstart.core.distillation_losses import soft_target_loss
from headstart.core.errors import ArtifactError
from headstart.tasks.classify import Classify
from headstart.tasks.source import CheckpointFolder

TEXTS = ["in the beginning god created", "and he said unto them", "let there be light", "the earth was without form"]


@pytest.fixture
def case(checkpoint, tmp_path):
    task = Classify(Classify.Config(text=["text"]))
    examples = Examples({"text": TEXTS}, ["a", "b", "a", "b"])
    task.fit_labels(examples)
    CheckpointFolder(checkpoint("modernbert"), task, 5).pretrained().save_pretrained(str(tmp_path))
    source = CheckpointFolder(checkpoint("modernbert"), task, 0)
    reading = source.reading(32)
    batch = task.collate(task.encode(examples, reading), reading)
    return task, source, batch, tmp_path


def test_the_loss_weighs_labels_against_the_teacher(case):
    task, source, batch, teacher = case
    losses = {}
    for share in (0.0, 0.5, 1.0):
        adaptation = Distillation(Distillation.Config(teacher=teacher, soft=share))
        model = adaptation.adapt(source).eval()
        losses[share] = adaptation.loss(task, model, batch).item()
    assert losses[0.0] == pytest.approx(task.loss(model, batch).item())
    expected = soft_target_loss(task.logits(model, batch), task.logits(adaptation._teacher, batch), 2.0).sum()
    assert losses[1.0] == pytest.approx(expected.item(), rel=1e-5)
    assert losses[0.5] == pytest.approx((losses[0.0] + losses[1.0]) / 2, rel=1e-5)


def test_layers_count_tokens_and_not_padding(case):
    task, source, batch, teacher = case
    adaptation = Distillation(Distillation.Config(teacher=teacher, hidden=1.0, soft=0.0))
    model = adaptation.adapt(source).eval()
    with torch.no_grad():
        for parameter in adaptation._teacher.parameters():
            parameter.add_(0.01)
    whole = adaptation.loss(task, model, batch).item()
    wider = {
        name: torch.nn.functional.pad(tensor, (0, 6)) if tensor.dim() > 1 else tensor for name, tensor in batch.items()
    }
    assert adaptation.loss(task, model, wider).item() == pytest.approx(whole, rel=1e-4)
    assert whole > task.loss(model, batch).item()


def test_only_the_student_learns(case):
    task, source, batch, teacher = case
    adaptation = Distillation(Distillation.Config(teacher=teacher))
    model = adaptation.adapt(source)
    adaptation.loss(task, model, batch).backward()
    assert all(parameter.grad is None for parameter in adaptation._teacher.parameters())
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert not model._forward_hooks and not model._forward_pre_hooks


def test_a_teacher_of_other_labels_is_refused(case, checkpoint, tmp_path):
    source = case[1]
    other = Classify(Classify.Config(text=["text"]))
    other.fit_labels(Examples({"text": TEXTS}, ["x", "y", "z", "x"]))
    folder = tmp_path / "other"
    CheckpointFolder(checkpoint("modernbert"), other, 0).pretrained().save_pretrained(str(folder))
    with pytest.raises(ArtifactError, match="same labels"):
        Distillation(Distillation.Config(teacher=folder)).adapt(source)
    with pytest.raises(ArtifactError, match=r"adaptation\.teacher is None"):
        Distillation().adapt(source)
