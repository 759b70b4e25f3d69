"""Activation checkpointing stores less and changes no bit of the result."""

from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from headstart.core import config
from headstart.core.errors import RecipeError
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.training.recomputation import recompute_layers


def network() -> BertForMaskedLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2}
    return BertForMaskedLM(BertConfig(**sizes, intermediate_size=64, max_position_embeddings=32)).train()


def step(model: BertForMaskedLM) -> tuple[float, int]:
    """Compute the gradients of a batch, and return the loss and the bytes stored for the backward pass."""
    ids = torch.arange(8 * 16).reshape(8, 16) % 50
    stored = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal stored
        stored += tensor.numel() * tensor.element_size()
        return tensor

    torch.manual_seed(1)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        loss = model(input_ids=ids, labels=ids).loss
    bytes_forward = stored
    loss.backward()
    return float(loss.detach()), bytes_forward


def test_recomputed_layers_store_less_and_give_the_same_gradients():
    plain, recomputed = network(), network()
    assert recompute_layers(recomputed) == 4
    (loss, stored), (same_loss, stored_less) = step(plain), step(recomputed)
    assert loss == same_loss and stored_less < stored / 2
    for (name, expected), got in zip(plain.named_parameters(), recomputed.parameters(), strict=True):
        assert (expected.grad is None and got.grad is None) or torch.equal(expected.grad, got.grad), name


def test_methods_whose_layers_compute_something_else_again_are_refused(tmp_path):
    data = {"train": "a.csv", "validation": 10, "test": "b.csv"}
    finetune = {"output": "out", "model": "m", "task": {"kind": "classify"}, "data": data, "adaptation": "full"}
    training = {"training": {"activation_checkpointing": "full"}}
    assert config.fill(FinetuneRecipe, finetune | training).training.activation_checkpointing == "full"
    for changed in ({"adaptation": "prefix"}, {"compare_with": ["majority", "prefix"]}):
        with pytest.raises(RecipeError, match="the layers of 'prefix' compute something else"):
            config.fill(FinetuneRecipe, finetune | training | changed)
    tsdae = {"output": "out", "corpus": {"files": ["a.txt"]}, "backbone": {"family": "encoder"}, "objective": "tsdae"}
    with pytest.raises(RecipeError, match="the layers of 'tsdae' compute something else"):
        config.fill(PretrainRecipe, tsdae | training)


def test_the_setting_reaches_the_layers_and_a_network_without_them_is_refused(toy, tmp_path):
    with pytest.raises(RecipeError, match="no layers that can be recomputed"):
        toy.loop(tmp_path, toy.Learner(), activation_checkpointing="full")
    learner = toy.Learner()
    learner.module.add_module("bert", network())
    toy.loop(tmp_path, learner, activation_checkpointing="full")
    assert all(layer.gradient_checkpointing for layer in learner.module.bert.bert.encoder.layer)
