"""BitFit: only biases train, in networks pre-trained with and without them."""

from __future__ import annotations

import pytest
import torch
import transformers
from tests.unit.adaptation.conftest import LAYOUTS
from tests.unit.adaptation.pretrained import CLASSIFIER

from headstart.adaptation.bitfit import BitFit
from headstart.core.errors import RecipeError

WITHOUT = ("modernbert", "modernbert-decoder", "llama")
"""Layouts that are pre-trained without biases, and get new ones."""


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "t5"])
def test_only_biases_and_the_head_train_from_the_checkpoint(layout, pretrained, tmp_path):
    given = pretrained(layout)
    plain = given.source.pretrained()
    head = given.source.new_parameters()
    model = BitFit().adapt(given.source)
    torch.testing.assert_close(given.outputs(model), given.outputs(plain), atol=1e-5, rtol=1e-4)
    assert (len(model.state_dict()) > len(plain.state_dict())) == (layout in WITHOUT)
    trainable, changed = given.train(model)
    biases = {name for name in trainable if "bias" in name.rpartition(".")[2]}
    assert trainable == biases | head and head & changed and biases - head
    assert changed <= trainable and len(changed) > len(trainable) / 2
    model.save_pretrained(str(tmp_path))
    loaded, info = getattr(transformers, CLASSIFIER).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    torch.testing.assert_close(given.outputs(loaded), given.outputs(model), atol=1e-5, rtol=1e-4)


def test_all_weights_of_bert_are_frozen(pretrained):
    given = pretrained("bert")
    model = BitFit().adapt(given.source)
    frozen = {name.rpartition(".")[2] for name, p in model.named_parameters() if not p.requires_grad}
    trainable = {name.rpartition(".")[2] for name, p in model.base_model.encoder.named_parameters() if p.requires_grad}
    assert (frozen, trainable) == ({"weight"}, {"bias"})


def test_t5_is_rejected_because_it_cannot_have_biases(pretrained):
    assert "no biases" in BitFit().supports_kind("t5")
    assert BitFit().supports_kind("bart") is None
    with pytest.raises(RecipeError, match="has no biases"):
        BitFit().adapt(pretrained("t5", "AutoModelForSeq2SeqLM").source)
