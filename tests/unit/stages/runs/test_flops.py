"""FLOPs per token against a count by hand."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from headstart.backbones.encoder import Encoder
from headstart.backbones.sizes import SIZES
from headstart.core.data import Examples
from headstart.core.vocabulary import vocabulary_of
from headstart.objectives.masked_lm import MaskedLM
from headstart.stages.runs.flops import counting_flops, flops_per_token
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


WIDTH, INNER, OUTPUTS, LENGTH = 64, 128, 100, 256
ATTENTION = 4 * WIDTH * WIDTH + 2 * LENGTH * WIDTH  # multiply-adds per token of a layer's attention
LAYER = ATTENTION + 2 * WIDTH * INNER
NETWORKS = {
    "encoder": (
        BertForMaskedLM,
        BertConfig(
            vocab_size=OUTPUTS, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, intermediate_size=INNER,
            hidden_dropout_prob=0, attention_probs_dropout_prob=0,
        ),
        2 * LAYER + WIDTH * WIDTH,
    ),
    "decoder": (
        GPT2LMHeadModel,
        GPT2Config(
            vocab_size=OUTPUTS, n_positions=LENGTH, n_embd=WIDTH, n_layer=2, n_head=4, n_inner=INNER, resid_pdrop=0,
            embd_pdrop=0, attn_pdrop=0,
        ),
        2 * LAYER,
    ),
    "decoder with grouped queries": (
        LlamaForCausalLM,
        LlamaConfig(
            vocab_size=OUTPUTS, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=1,
        ),
        2 * (LAYER + WIDTH * INNER - 2 * WIDTH * (WIDTH - WIDTH // 4)),  # a gate, and narrow keys and values
    ),
    "encoder-decoder": (
        BartForConditionalGeneration,
        BartConfig(
            vocab_size=OUTPUTS, max_position_embeddings=LENGTH, d_model=WIDTH, dropout=0, encoder_layers=2,
            encoder_ffn_dim=INNER, encoder_attention_heads=4, decoder_layers=2, decoder_ffn_dim=INNER,
            decoder_attention_heads=4,
        ),
        4 * LAYER + 2 * ATTENTION,
    ),
}  # fmt: skip
"""Class, config and multiply-adds per token of all layers, without the output matrix."""


class OwnLoss:
    """The loss that a model of transformers returns."""

    def loss(self, model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return model(**batch).loss


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("name", list(NETWORKS))
def test_attention_is_counted_with_every_kernel(name, kernel, padded):
    """Six FLOPs per multiply-add, two of them forward; torch's own counter does not know the CPU's fused kernel."""
    architecture, config, layers = NETWORKS[name]
    model = architecture(config)
    model.set_attn_implementation(kernel)
    ids = torch.randint(5, OUTPUTS, (ROWS, LENGTH))
    batch = {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}
    batch["attention_mask"][0, LENGTH // 2 :] = 0 if padded else 1
    flops = flops_per_token(LossModule(model, OwnLoss()), batch, ROWS * LENGTH)
    assert flops == pytest.approx(6 * (layers + WIDTH * OUTPUTS), rel=0.01)


def test_attention_without_gradients_is_counted_too():
    model = BertForMaskedLM(NETWORKS["encoder"][1])
    ids = torch.randint(5, OUTPUTS, (ROWS, LENGTH))
    counts = []
    for kernel in ("eager", "sdpa"):
        model.set_attn_implementation(kernel)
        with torch.no_grad(), counting_flops() as counter:
            model(ids)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] == pytest.approx(2 * ids.numel() * (NETWORKS["encoder"][2] + WIDTH * OUTPUTS))
