"""What a body could do before: pairs of sentences, for a checkpoint of any origin."""

from __future__ import annotations

import csv

import pytest
import torch

from headstart.adaptation.features import Features
from headstart.core.errors import ArtifactError, DataError
from headstart.stages.finetune.forgetting import SimilarPairs, probe
from headstart.stages.pretrain.reopen import Pretraining
from headstart.tasks.classify import Classify
from headstart.tasks.labelled import read
from headstart.tasks.source import CheckpointFolder

pytest.importorskip("sentence_transformers", reason="pooling is its; pip install headstart[search] un-skips this")


@pytest.fixture(scope="module")
def pairs(way, verses, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("pairs") / "pairs.csv"
    texts = [verse for verse in verses if len(verse.split()) > 6][:30]
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = [(text, " ".join(text.split()[place % 6 :]), 5 - place % 6) for place, text in enumerate(texts)]
        csv.writer(file).writerows([("sentence1", "sentence2", "score"), *rows])
    return str(path)


def test_a_body_that_changed_agrees_otherwise(way, pairs):
    asked = probe(pairs, str(way / "pretrained"))
    task = Classify(Classify.Config())
    task.fit_labels(read(way / "train.csv", task.columns("train")))
    model = CheckpointFolder(way / "pretrained", task, 0).pretrained()
    found = asked.forgetting(model)
    assert found.what == "spearman × 100 on pairs.csv" and found.change == pytest.approx(0, abs=1e-6)
    assert 20 < found.before <= 100, "the more words are left out, the less alike the two are"
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.bert.encoder.parameters():
            parameter.normal_()
    assert abs(asked.forgetting(model).change) > 1


def test_what_a_recipe_asks_for_is_opened(way, pairs, tmp_path):
    assert probe(False, str(way / "pretrained")) is None
    assert isinstance(probe(True, str(way / "pretrained")), Pretraining)
    assert isinstance(probe(pairs, str(way / "pretrained")), SimilarPairs)
    with pytest.raises(ArtifactError, match="does not tell how it was pre-trained"):
        probe(True, str(way / "tuned"))
    with pytest.raises(DataError):
        probe(str(tmp_path / "none.csv"), str(way / "pretrained"))


def test_a_part_on_top_is_no_part_of_the_body(way, pairs):
    """Features of all layers mixed: what was trained stands on a body that is as it was."""
    task = Classify(Classify.Config())
    task.fit_labels(read(way / "train.csv", task.columns("train")))
    method = Features(Features.Config(layers="mix"))
    model = method.adapt(CheckpointFolder(way / "pretrained", task, 0))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_()
    found = probe(pairs, str(way / "pretrained")).forgetting(method.finish(model))
    assert found.change == pytest.approx(0, abs=1e-6)
