"""Pre-trained vectors with new layers: token embeddings of the checkpoint, everything else as in scratch."""

from __future__ import annotations

import pytest
import torch
from tests.unit.adaptation.conftest import LAYOUTS

from headstart.adaptation.embeddings_only import EmbeddingsOnly
from headstart.adaptation.scratch import Scratch


@pytest.mark.parametrize("layout", LAYOUTS)
def test_token_embeddings_come_from_the_checkpoint_and_all_else_is_new(layout, pretrained):
    given = pretrained(layout)
    model, old, fresh = EmbeddingsOnly().adapt(given.source), given.source.pretrained(), Scratch().adapt(given.source)
    inside = {id(parameter) for parameter in model.get_input_embeddings().parameters()}
    copied = {name for name, parameter in model.named_parameters() if id(parameter) in inside}
    assert copied
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad
        assert torch.equal(parameter, (old if name in copied else fresh).get_parameter(name)), name
    assert any(not torch.equal(old.get_parameter(name), fresh.get_parameter(name)) for name in copied)


@pytest.mark.parametrize("layout", ["bert", "gpt2", "t5", "characters"])
def test_frozen_vectors_stay_and_the_layers_train(layout, pretrained):
    given = pretrained(layout)
    model = EmbeddingsOnly(EmbeddingsOnly.Config(freeze=True)).adapt(given.source)
    inside = {id(parameter) for parameter in model.get_input_embeddings().parameters()}
    frozen = {name for name, parameter in model.named_parameters() if id(parameter) in inside}
    trainable, changed = given.train(model)
    assert frozen and not frozen & (trainable | changed)
    assert any("layer" in name or "block" in name or ".h." in name for name in changed)
