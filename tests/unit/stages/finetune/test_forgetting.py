"""Forgetting measured with pairs of sentences, for any checkpoint."""

from __future__ import annotations

import csv

import pytest
import torch

from headstart.adaptation.features import FeatureExtraction
from headstart.core.errors import ArtifactError, DataError
from headstart.stages.finetune.forgetting import SimilarPairs, open_probe
from headstart.stages.pretrain.reopen import Pretraining
from headstart.tasks.classify import Classify
from headstart.tasks.labelled import read
from headstart.tasks.source import CheckpointFolder

pytest.importorskip("sentence_transformers", reason="it does the pooling; pip install headstart[search] un-skips this")


@pytest.fixture(scope="module")
def pairs(way, verses, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("pairs") / "pairs.csv"
    texts = [verse for verse in verses if len(verse.split()) > 6][:30]
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = [(text, " ".join(text.split()[i % 6 :]), 5 - i % 6) for i, text in enumerate(texts)]
        csv.writer(file).writerows([("sentence1", "sentence2", "score"), *rows])
    return str(path)


def test_a_changed_body_changes_the_correlation(way, pairs):
    probe = open_probe(pairs, str(way / "pretrained"))
    task = Classify(Classify.Config())
    task.fit_labels(read(way / "train.csv", task.columns("train")))
    model = CheckpointFolder(way / "pretrained", task, 0).pretrained()
    forgetting = probe.forgetting(model)
    assert forgetting.what == "spearman × 100 on pairs.csv" and forgetting.change == pytest.approx(0, abs=1e-6)
    assert 20 < forgetting.before <= 100, "the fewer words two texts share, the lower the similarity"
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.bert.encoder.parameters():
            parameter.normal_()
    assert abs(probe.forgetting(model).change) > 1


def test_the_setting_selects_the_probe(way, pairs, tmp_path):
    assert open_probe(False, str(way / "pretrained")) is None
    assert isinstance(open_probe(True, str(way / "pretrained")), Pretraining)
    assert isinstance(open_probe(pairs, str(way / "pretrained")), SimilarPairs)
    with pytest.raises(ArtifactError, match="does not record how it was pre-trained"):
        open_probe(True, str(way / "tuned"))
    with pytest.raises(DataError):
        open_probe(str(tmp_path / "none.csv"), str(way / "pretrained"))


def test_an_opened_checkpoint_gives_the_same_probe(way, pairs):
    task = Classify(Classify.Config())
    source = CheckpointFolder(way / "pretrained", task, 0)
    opened, from_path = open_probe(pairs, source), open_probe(pairs, way / "pretrained")
    assert opened.features == from_path.features and opened.source.family == from_path.source.family
    assert opened.source.tokenizer() is source.tokenizer(), "the tokenizer is loaded once"
    assert source.task is task and opened.source.task is opened.task


def test_layers_on_top_do_not_count_as_forgetting(way, pairs):
    """A mix of features of all layers leaves the body as it was."""
    task = Classify(Classify.Config())
    task.fit_labels(read(way / "train.csv", task.columns("train")))
    method = FeatureExtraction(FeatureExtraction.Config(layers="mix"))
    model = method.adapt(CheckpointFolder(way / "pretrained", task, 0))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_()
    forgetting = open_probe(pairs, str(way / "pretrained")).forgetting(method.finish(model))
    assert forgetting.change == pytest.approx(0, abs=1e-6)
