"""Task-specific distillation: labels, the teacher's predictions and its hidden states."""

from __future__ import annotations

import csv
import json

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

import headstart
from headstart.adaptation.contrast import Contrast
from headstart.adaptation.distillation import TeacherDistillation, _with_predicted_labels
from headstart.core.data import UNLABELED, Examples
from headstart.core.distillation_losses import soft_target_loss
from headstart.core.errors import ArtifactError, DataError, RecipeError
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
    spec = source.input_spec(32)
    batch = task.collate(task.encode(examples, spec), spec)
    return task, source, batch, tmp_path


def test_soft_weighs_the_teacher_against_the_labels(case):
    task, source, batch, teacher = case
    losses = {}
    for soft in (0.0, 0.5, 1.0):
        adaptation = TeacherDistillation(TeacherDistillation.Config(teacher=teacher, soft=soft))
        model = adaptation.adapt(source).eval()
        losses[soft] = adaptation.loss(task, model, batch).item()
    assert losses[0.0] == pytest.approx(task.loss(model, batch).item())
    expected = soft_target_loss(task.logits(model, batch), task.logits(adaptation._teacher, batch), 2.0).sum()
    assert losses[1.0] == pytest.approx(expected.item(), rel=1e-5)
    assert losses[0.5] == pytest.approx((losses[0.0] + losses[1.0]) / 2, rel=1e-5)


@pytest.mark.parametrize("term", ["hidden", "attention_maps"])
def test_the_loss_of_layers_ignores_padding(case, term):
    task, source, batch, teacher = case
    adaptation = TeacherDistillation(TeacherDistillation.Config(teacher=teacher, soft=0.0, **{term: 1.0}))
    model = adaptation.adapt(source).eval()
    with torch.no_grad():
        for parameter in adaptation._teacher.parameters():
            parameter.add_(0.01)
    loss = adaptation.loss(task, model, batch).item()
    padded = {
        name: torch.nn.functional.pad(tensor, (0, 6)) if tensor.dim() > 1 else tensor for name, tensor in batch.items()
    }
    assert adaptation.loss(task, model, padded).item() == pytest.approx(loss, rel=1e-4)
    assert loss > task.loss(model, batch).item()


def test_only_the_student_gets_gradients(case):
    task, source, batch, teacher = case
    adaptation = TeacherDistillation(TeacherDistillation.Config(teacher=teacher))
    model = adaptation.adapt(source)
    adaptation.loss(task, model, batch).backward()
    assert all(parameter.grad is None for parameter in adaptation._teacher.parameters())
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert not model._forward_hooks and not model._forward_pre_hooks


def test_a_teacher_with_other_labels_is_rejected(case, checkpoint, tmp_path):
    source = case[1]
    other = Classify(Classify.Config(text=["text"]))
    other.fit_labels(Examples({"text": TEXTS}, ["x", "y", "z", "x"]))
    folder = tmp_path / "other"
    CheckpointFolder(checkpoint("modernbert"), other, 0).pretrained().save_pretrained(str(folder))
    with pytest.raises(ArtifactError, match="same labels"):
        TeacherDistillation(TeacherDistillation.Config(teacher=folder)).adapt(source)
    with pytest.raises(ArtifactError, match=r"adaptation\.teacher is None"):
        TeacherDistillation().adapt(source)


def test_hidden_states_of_an_encoder_decoder_are_refused(case, tiny_tokenizer, tmp_path):
    task, start = case[0], tmp_path / "start"
    sizes = {"vocab_size": len(tiny_tokenizer), "d_model": 16, "d_ff": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8}
    T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).save_pretrained(str(start))
    tiny_tokenizer.save_pretrained(str(start))
    source = CheckpointFolder(start, task, 0)
    source.pretrained().save_pretrained(str(tmp_path))
    with pytest.raises(RecipeError, match="the student is an encoder-decoder"):
        TeacherDistillation(TeacherDistillation.Config(teacher=tmp_path, hidden=1.0)).adapt(source)


def test_a_model_with_a_fitted_head_is_a_start_too(case, tmp_path):
    task, source, _, _ = case
    Contrast().adapt(source).save_pretrained(str(tmp_path / "pooled"))
    source.tokenizer().save_pretrained(str(tmp_path / "pooled"))
    again = CheckpointFolder(tmp_path / "pooled", task, 0)
    assert len(again.tokenizer()) == len(source.tokenizer()) and again.pretrained().config.num_labels == 2


def test_a_model_with_a_fitted_head_can_be_the_teacher(case, tmp_path):
    task, source, batch, _ = case
    pooled = Contrast().adapt(source)
    pooled.save_pretrained(str(tmp_path / "pooled"))
    adaptation = TeacherDistillation(TeacherDistillation.Config(teacher=tmp_path / "pooled", soft=1.0))
    model = adaptation.adapt(source).eval()
    expected = soft_target_loss(task.logits(model, batch), task.logits(pooled.eval(), batch), 2.0).sum()
    assert adaptation.loss(task, model, batch).item() == pytest.approx(expected.item(), rel=1e-5)


def test_rows_without_labels_get_those_of_the_teacher(case):
    task, source, batch, teacher = case
    adaptation = TeacherDistillation(TeacherDistillation.Config(teacher=teacher, soft=0.5))
    model = adaptation.adapt(source).eval()
    predicted = task.logits(adaptation._teacher, batch).argmax(-1)
    unlabeled = torch.tensor([False, True, False, True])
    expected = {**batch, "labels": torch.where(unlabeled, predicted, batch["labels"])}
    # The placeholder must have no effect.
    for placeholder in (0, 1):
        labels = torch.where(unlabeled, placeholder, batch["labels"])
        loss = adaptation.loss(task, model, {**batch, "labels": labels, UNLABELED: unlabeled})
        assert loss.item() == pytest.approx(adaptation.loss(task, model, expected).item(), rel=1e-6)
    wrong = {**expected, "labels": torch.where(unlabeled, 1 - predicted, batch["labels"])}
    assert adaptation.loss(task, model, wrong).item() != pytest.approx(loss.item(), rel=1e-3)


@pytest.mark.parametrize(
    ("labels", "logits", "expected"),
    [
        (torch.tensor([3.0, 0.0]), torch.tensor([[1.5], [2.5]]), [3.0, 2.5]),
        (torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([[-1.0, 2.0], [3.0, -2.0]]), [[1.0, 0.0], [1.0, 0.0]]),
    ],
    ids=["regression", "several-labels"],
)
def test_the_predictions_have_the_form_of_the_labels(labels, logits, expected):
    batch = {"labels": labels, UNLABELED: torch.tensor([False, True])}
    assert _with_predicted_labels(batch, logits)["labels"].tolist() == expected


def test_a_run_trains_on_texts_without_labels(way, recipe_of, labelled_rows, tmp_path):
    for name, column in (("texts.csv", "text"), ("other.csv", "sentence")):
        with (tmp_path / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([(column,), *((text,) for text, _ in labelled_rows[60:84])])

    def finetune(texts, output):
        adaptation = {"name": "distillation", "teacher": str(way / "tuned"), "texts": str(tmp_path / texts)}
        training = {"budget": "1 epochs", "max_length": 32, "eval_count": 1, "batch_size": 16}
        recipe = recipe_of["finetune"](way, adaptation=adaptation, training=training, output=str(tmp_path / output))
        return headstart.finetune(recipe, quiet=True)

    with pytest.raises(DataError, match=r"other\.csv has no column 'text'"):
        finetune("other.csv", "refused")
    finetune("texts.csv", "student")
    manifest = json.loads((tmp_path / "student" / "headstart.json").read_text())
    assert manifest["data"]["train_rows"] == 40
    assert manifest["steps"] == 4, "40 labeled rows and 24 others, 16 in a step"
