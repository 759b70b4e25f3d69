"""FLOPs per token against a count by hand."""

from __future__ import annotations

import pytest
import torch

from headstart.backbones.encoder import Encoder
from headstart.backbones.sizes import SIZES
from headstart.core.data import Examples
from headstart.core.vocabulary import vocabulary_of
from headstart.objectives.masked_lm import MaskedLM
from headstart.stages.runs.flops import flops_per_token
from headstart.tasks.classify import Classify
from headstart.tasks.source import CheckpointFolder
from headstart.training.module import LossModule

ROWS = 3


def counted(kind: str, tokenizer, length: int, share: float) -> float:
    encoder = Encoder(Encoder.Config.model_validate({"kind": kind, "size": "tiny", "dropout": 0.0}))
    model = encoder.build(vocabulary_of(tokenizer), length, "AutoModelForMaskedLM")
    model.set_attn_implementation("eager")
    count = round(share * length)
    batch = {
        "input_ids": torch.randint(5, 500, (ROWS, length)),
        "positions": torch.arange(count).expand(ROWS, count),
        "labels": torch.full((ROWS, count), 7),
        "weights": torch.ones(ROWS, count),
    }
    module = LossModule(model, MaskedLM())
    flops = flops_per_token(module, batch, ROWS * length)
    assert all(parameter.grad is None for parameter in module.parameters())
    return flops


@pytest.mark.parametrize("share", [0.125, 1.0])
@pytest.mark.parametrize("length", [64, 512])
def test_bert_by_hand(tiny_tokenizer, share, length):
    layers, width, _ = SIZES["tiny"]
    projections = 4 * width * width
    feed_forward = 2 * width * 4 * width
    attention = 2 * length * width  # queries × keys and weights × values, multiply-adds a token
    head = width * width + width * len(tiny_tokenizer)
    multiply_adds = layers * (projections + feed_forward + attention) + share * head
    assert counted("bert", tiny_tokenizer, length, share) == pytest.approx(3 * 2 * multiply_adds, rel=0.01)


def test_a_shared_layer_counts_as_often_as_it_runs(tiny_tokenizer):
    albert, bert = (counted(kind, tiny_tokenizer, 64, 1 / 64) for kind in ("albert", "bert"))
    assert albert == pytest.approx(bert, rel=0.1)


def test_frozen_layers_need_no_backward_pass(checkpoint, tiny_tokenizer):
    task = Classify(Classify.Config())
    task.fit_labels(Examples({}, ["a", "b"]))
    model = CheckpointFolder(checkpoint("bert"), task, 0).pretrained()
    batch = {"input_ids": torch.randint(5, 500, (4, 32)), "labels": torch.tensor([0, 1, 0, 1])}
    whole = flops_per_token(LossModule(model, task), batch, 128)
    model.base_model.requires_grad_(False)
    assert flops_per_token(LossModule(model, task), batch, 128) == pytest.approx(whole / 3, rel=0.05)
