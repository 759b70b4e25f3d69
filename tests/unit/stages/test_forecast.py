"""FLOPs per token against a count by hand."""

from __future__ import annotations

import pytest

from headstart.backbones.encoder import SIZES, Encoder
from headstart.core.contracts import Examples
from headstart.core.vocabulary import vocabulary_of
from headstart.stages.forecast import flops_per_token
from headstart.tasks.classify import Classify
from headstart.tasks.source import CheckpointFolder


def model_of(kind: str, tokenizer):
    encoder = Encoder(Encoder.Config.model_validate({"kind": kind, "size": "tiny"}))
    return encoder.build(vocabulary_of(tokenizer), 64, "masked_lm")


@pytest.mark.parametrize("share", [0.15, 1.0])
@pytest.mark.parametrize("length", [64, 512])
def test_bert_by_hand(tiny_tokenizer, share, length):
    """Products of matrices only: what norms and biases add is below a hundredth."""
    layers, width, _ = SIZES["tiny"]
    vocabulary = len(tiny_tokenizer)
    projections = 4 * width * width
    feed_forward = 2 * width * 4 * width
    attention = 2 * length * width  # queries × keys and weights × values, multiply-adds a token
    head = width * width + width * vocabulary
    multiply_adds = layers * (projections + feed_forward + attention) + share * head
    found = flops_per_token(model_of("bert", tiny_tokenizer), length, share)
    assert found == pytest.approx(3 * 2 * multiply_adds, rel=0.01)


def test_modernbert_by_hand(tiny_tokenizer):
    layers, width, _ = SIZES["tiny"]
    model = model_of("modernbert", tiny_tokenizer)
    inner = model.config.intermediate_size
    block = 4 * width * width + 3 * width * inner + 2 * 64 * width
    head = width * width + width * len(tiny_tokenizer)
    assert flops_per_token(model, 64, 0.15) == pytest.approx(6 * (layers * block + 0.15 * head), rel=0.01)


def test_a_shared_layer_counts_as_often_as_it_runs(tiny_tokenizer):
    albert, bert = (flops_per_token(model_of(kind, tiny_tokenizer), 64, 0.0) for kind in ("albert", "bert"))
    assert albert == pytest.approx(bert, rel=0.1)


def test_inference_costs_a_third_of_training(tiny_tokenizer):
    model = model_of("bert", tiny_tokenizer)
    assert flops_per_token(model, 64, 0.15) == pytest.approx(3 * flops_per_token(model, 64, 0.15, passes=1.0))


def test_what_torch_counts(tiny_tokenizer):
    """torch's own counter sees the same products, forwards and backwards."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model = model_of("bert", tiny_tokenizer)
    model.set_attn_implementation("eager")
    rows, length = 3, 64
    ids = torch.randint(5, 500, (rows, length))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.sum().backward()
    assert flops_per_token(model, length, 1.0) == pytest.approx(counter.get_total_flops() / ids.numel(), rel=0.03)


def test_a_classifier_s_head_is_counted_once_a_row(checkpoint):
    task = Classify(Classify.Config())
    task.fit_labels(Examples({}, ["a", "b"]))
    model = CheckpointFolder(checkpoint("bert"), task, 0).pretrained()
    often, once = flops_per_token(model, 32, 1.0), flops_per_token(model, 32, 1 / 32)
    head = sum(p.numel() for p in model.classifier.parameters())
    assert often - once == pytest.approx(6 * head * 31 / 32)
