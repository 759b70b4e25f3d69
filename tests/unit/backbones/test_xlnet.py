"""The XLNet backbone: named sizes and the classification head on [CLS]."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from transformers import XLNetConfig, XLNetForSequenceClassification, XLNetLMHeadModel

from headstart.backbones.sizes import SIZES
from headstart.backbones.xlnet import XLNet
from headstart.core.data import Vocabulary
from headstart.core.errors import RecipeError
from headstart.tasks.source import family_of

VOCABULARY = Vocabulary(300, 0, 2, 3, 4, special=np.arange(300) < 5, starts_word=np.ones(300, dtype=bool))


def build(auto_class="AutoModelForCausalLM", seq_length=32, **settings):
    torch.manual_seed(0)
    return XLNet(XLNet.Config(**{"size": "tiny", **settings})).build(VOCABULARY, seq_length, auto_class).eval()


@pytest.mark.parametrize("size", ["tiny", "base"])
def test_named_sizes(size):
    with torch.device("meta"):
        model = build(size=size)
    config = model.config
    assert isinstance(model, XLNetLMHeadModel)
    assert (config.n_layer, config.d_model, config.n_head) == SIZES[size]
    assert config.d_inner == 4 * config.d_model
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 2, 3)


def test_base_has_the_published_number_of_parameters():
    """xlnet-base-cased: 12 layers of 768, 32,000 tokens, 117 million parameters in its table of models."""
    with torch.device("meta"):
        ours = sum(parameter.numel() for parameter in build(size="base").parameters())
        published = XLNetLMHeadModel(XLNetConfig(d_model=768, n_layer=12, n_head=12, d_inner=3072))
    assert ours + (32000 - 300) * 769 == sum(parameter.numel() for parameter in published.parameters())


def test_too_long_rows_and_unknown_sizes_raise():
    with pytest.raises(RecipeError, match=r"seq_length` is 65, but `backbone\.max_length` is 64"):
        build(seq_length=65, max_length=64)
    with pytest.raises(ValidationError, match="one of tiny, mini"):
        XLNet.Config(size="huge")


def test_classifier_reads_the_first_token_independent_of_padding():
    model = build("AutoModelForSequenceClassification")
    assert isinstance(model, XLNetForSequenceClassification)
    ids = torch.randint(5, 300, (2, 20))
    mask = (torch.arange(20) < 12).long().expand(2, 20)
    with torch.no_grad():
        padded, bare = model(ids, attention_mask=mask).logits, model(ids[:, :12]).logits
    torch.testing.assert_close(padded, bare, atol=1e-5, rtol=1e-5)


def test_family_is_xlnet_and_there_is_no_memory():
    assert family_of(XLNetConfig()) == "xlnet"
    assert build().config.use_mems_eval is False
    with torch.no_grad():
        assert build()(torch.randint(5, 300, (1, 8))).mems is None
