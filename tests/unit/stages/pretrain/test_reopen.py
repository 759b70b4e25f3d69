"""The reopened pre-training of a checkpoint: rehearsed beside a task, and evaluated before and after it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import pipeline

import headstart
from headstart.adaptation.full import Full
from headstart.adaptation.rehearsal import Rehearsal
from headstart.core.data import Sample
from headstart.core.errors import ArtifactError
from headstart.evaluation.forgetting import Forgetting
from headstart.stages.finetune.learner import TaskLearner
from headstart.stages.pretrain.reopen import Pretraining
from headstart.tasks.classify import Classify
from headstart.tasks.labelled import read
from headstart.tasks.source import CheckpointFolder
from headstart.training.loop import Loop, RunInfo
from headstart.training.phases import Phase
from headstart.training.settings import TrainingSettings


@pytest.fixture(scope="module")
def pretraining(way) -> Pretraining:
    return Pretraining(way / "pretrained")


@pytest.fixture
def task(way) -> Classify:
    task = Classify(Classify.Config())
    task.fit_labels(read(way / "train.csv", task.columns("train")))
    return task


@pytest.fixture
def source(way, task) -> CheckpointFolder:
    return CheckpointFolder(way / "pretrained", task, 0, Pretraining)


def test_the_unchanged_checkpoint_has_forgotten_nothing(way, pretraining, source):
    forgetting = pretraining.forgetting(source.pretrained())
    assert forgetting.change == pytest.approx(0, abs=1e-5)
    stated = json.loads((way / "pretrained" / "headstart.json").read_text())["metrics"]["validation"]["loss"]
    assert forgetting.before == pytest.approx(stated, abs=0.02), "the loss that pre-training recorded"


def test_the_networks_share_their_body_and_the_old_head_stays(pretraining, source):
    model = source.pretrained()
    network = pretraining.network(model)
    shared = {id(p) for p in network.parameters()} & {id(p) for p in model.parameters()}
    assert shared == {id(p) for name, p in model.bert.named_parameters() if "pooler" not in name}
    assert network.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.weight.normal_(std=1.0)
    assert pretraining.forgetting(model).change > 0.01


def test_the_sample_determines_the_row(pretraining):
    samples = [Sample(0, 3), Sample(0, 4), Sample(1, 3)]
    batch, reversed_batch = pretraining.batch(samples), pretraining.batch(samples[::-1])
    assert torch.equal(batch["input_ids"], reversed_batch["input_ids"].flip(0))
    assert not torch.equal(batch["input_ids"][0], batch["input_ids"][2])


def test_a_fraction_of_the_rows_is_rehearsed(source, task):
    method = Rehearsal(Rehearsal.Config(share=0.3))
    model = method.adapt(source)
    batch = {"labels": torch.zeros(1)}
    samples = [Sample(epoch, index) for epoch in range(5) for index in range(40)]
    drawn = [s for s in samples if len(method.extend(batch, [s])) > 1]
    assert 0.2 < len(drawn) / len(samples) < 0.4
    whole = method.extend(batch, samples)
    assert len(whole["rehearsal/input_ids"]) == len(drawn)
    assert float(whole["rehearsal/drawn"]) == pytest.approx(len(drawn) / len(samples))
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {n for n, _ in model.named_parameters()}


def test_a_rehearsed_row_has_the_weight_of_a_labeled_one(way, source, task):
    method = Rehearsal(Rehearsal.Config(share=1.0, weight=0.5))
    model = method.adapt(source).eval()
    spec = source.input_spec(32)
    rows = read(way / "train.csv", task.columns("train")).take(range(4))
    plain = task.collate(task.encode(rows, spec, training=True), spec)
    batch = method.extend(plain, [Sample(0, index) for index in range(4)])
    rehearsed = {name.removeprefix("rehearsal/"): t for name, t in batch.items() if name.startswith("rehearsal/")}
    opened = method._replay
    mean = opened.loss(method._network.eval(), rehearsed) / opened.weight(rehearsed)
    expected = task.loss(model, plain) + 0.5 * 4 * mean
    assert method.loss(task, model, batch).item() == pytest.approx(expected.item(), rel=1e-5)


def train(method, source, task, way, folder: Path) -> tuple[torch.nn.Module, Forgetting]:
    spec = source.input_spec(32)
    examples = read(way / "train.csv", task.columns("train"))
    model = method.adapt(source)
    encoded = task.encode(examples, spec, training=True)
    learner = TaskLearner(model, task, method, spec, encoded, encoded[:8], examples.labels[:8])
    settings = TrainingSettings(budget="40 steps", learning_rate=2e-3, precision="fp32", eval_count=0)
    Loop(learner, settings, RunInfo(folder, "test"), [Phase(0.0, learner, 8)]).run()
    return model, Pretraining(way / "pretrained").forgetting(model)


def test_rehearsal_forgets_less_than_plain_fine_tuning(way, source, task, tmp_path):
    _, full = train(Full(), source, task, way, tmp_path / "full")
    _, rehearsed = train(Rehearsal(Rehearsal.Config(share=1.0)), source, task, way, tmp_path / "rehearsed")
    assert full.change > 0.02
    assert rehearsed.change < full.change - 0.02


def test_a_folder_of_unknown_origin_is_refused(way, tmp_path):
    with pytest.raises(ArtifactError, match="does not record how it was pre-trained"):
        Pretraining(tmp_path)
    with pytest.raises(ArtifactError, match="does not record how it was pre-trained"):
        Pretraining(way / "tuned")


def test_the_table_reports_forgetting_and_the_model_loads(way, recipe_of, tmp_path):
    recipe = recipe_of["finetune"](
        way, output=str(tmp_path / "tuned"), forgetting=True, adaptation={"name": "features", "layers": "mix"},
        compare_with=["majority", "full", "rehearsal", "gradual_unfreezing"],
    )  # fmt: skip
    folder = headstart.finetune(recipe, quiet=True)
    manifest = json.loads((folder / "headstart.json").read_text())
    lines = {line.split("|")[1].strip(): line for line in manifest["table"].splitlines()}
    assert "change of pre-training loss" in lines["method"]
    assert "+0.000" in lines["features"] and "+0.000" not in lines["full"]
    assert {"full", "rehearsal", "gradual_unfreezing"} < lines.keys()
    assert "import headstart.adaptation.on_top_network" in (folder / "README.md").read_text()
    model, _ = headstart.load(folder)
    assert type(model).__name__ == "OnTopForSequenceClassification"
    (prediction,) = pipeline("text-classification", model=str(folder))("In the beginning God created the heaven.")
    assert prediction["label"] in set(manifest["task"]["labels"])
    scores = headstart.evaluate(folder, way / "test.csv")
    assert scores["accuracy"] == pytest.approx(manifest["metrics"]["features"][0]["accuracy"])
