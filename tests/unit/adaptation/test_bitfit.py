"""BitFit: biases alone, in networks with and without them."""

from __future__ import annotations

import pytest
import torch
import transformers
from tests.unit.adaptation.conftest import LAYOUTS
from tests.unit.adaptation.pretrained import CLASSIFIER

from headstart.adaptation.bitfit import BitFit
from headstart.core.errors import RecipeError

WITHOUT = ("modernbert", "modernbert-decoder", "llama")
"""Layouts that are pre-trained without biases, and are given some."""


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "t5"])
def test_biases_and_the_head_move_from_where_the_checkpoint_was(layout, pretrained, tmp_path):
    given = pretrained(layout)
    plain = given.source.pretrained()
    head = given.source.new_parameters()
    model = BitFit().adapt(given.source)
    torch.testing.assert_close(given.outputs(model), given.outputs(plain), atol=1e-5, rtol=1e-4)
    assert (len(model.state_dict()) > len(plain.state_dict())) == (layout in WITHOUT)
    could, did = given.train(model)
    biases = {name for name in could if "bias" in name.rpartition(".")[2]}
    assert could == biases | head and head & did and biases - head
    assert did <= could and len(did) > len(could) / 2
    model.save_pretrained(str(tmp_path))
    loaded, info = getattr(transformers, CLASSIFIER).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    torch.testing.assert_close(given.outputs(loaded), given.outputs(model), atol=1e-5, rtol=1e-4)


def test_no_other_weight_of_bert_is_meant(pretrained):
    given = pretrained("bert")
    model = BitFit().adapt(given.source)
    frozen = {name.rpartition(".")[2] for name, p in model.named_parameters() if not p.requires_grad}
    moving = {name.rpartition(".")[2] for name, p in model.base_model.encoder.named_parameters() if p.requires_grad}
    assert (frozen, moving) == ({"weight"}, {"bias"})


def test_t5_which_can_have_none_is_refused(pretrained):
    assert "no biases" in BitFit().supports_kind("t5")
    assert BitFit().supports_kind("bart") is None
    with pytest.raises(RecipeError, match="has no biases"):
        BitFit().adapt(pretrained("t5", "AutoModelForSeq2SeqLM").source)
