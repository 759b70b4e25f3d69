"""The encoder backbone: six layouts with named sizes."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForMaskedLM

from headstart.backbones.encoder import SIZES, Encoder
from headstart.core.data import Vocabulary
from headstart.core.errors import RecipeError

KINDS = get_args(Encoder.Config.model_fields["kind"].annotation)
ABLATION = [(3, 768, 12), (6, 768, 3), (6, 768, 12), (12, 768, 12), (12, 1024, 16), (24, 1024, 16)]


def vocabulary(size: int) -> Vocabulary:
    return Vocabulary(size, 0, 2, 3, 4, special=np.arange(size) < 5, starts_word=np.ones(size, dtype=bool))


def build(size, kind="bert", vocab=300, seq_length=32, **settings):
    return Encoder(Encoder.Config(kind=kind, size=size, **settings)).build(
        vocabulary(vocab), seq_length, "AutoModelForMaskedLM"
    )


def build_without_weights(*arguments, **settings):
    """Build on the meta device, so that a large model needs neither memory nor time."""
    with torch.device("meta"):
        return build(*arguments, **settings)


def shape(model):
    config = model.config
    return config.num_hidden_layers, config.hidden_size, config.num_attention_heads


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_six_kinds():
    assert set(KINDS) == {"bert", "roberta", "modernbert", "deberta-v2", "albert", "electra"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_reads_rows_up_to_max_length(kind):
    torch.manual_seed(0)
    model = build("tiny", kind, seq_length=64, max_length=64).eval()
    assert type(model) in AutoModelForMaskedLM._model_mapping.values()
    assert shape(model) == (2, 128, 2)
    ids = torch.randint(5, 300, (2, 64))
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    assert logits.shape == (2, 64, 300)
    assert logits.isfinite().all()
    with pytest.raises(
        RecipeError, match=r"seq_length` is 65, but `backbone\.max_length` is 64.*raise `backbone\.max_length`"
    ):
        build("tiny", kind, seq_length=65, max_length=64)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_depends_on_both_sides_and_the_order(kind):
    torch.manual_seed(0)
    model = build("tiny", kind).eval()
    ids = torch.randint(5, 300, (1, 16))
    first, last, swapped = ids.clone(), ids.clone(), ids.clone()
    first[0, 0], last[0, -1] = 299 - ids[0, 0], 299 - ids[0, -1]
    swapped[0, [2, 3]] = ids[0, [3, 2]]
    with torch.no_grad():
        middle, by_first, by_last, by_order = (model(input_ids=i).logits[0, 8] for i in (ids, first, last, swapped))
    assert not torch.equal(middle, by_first)
    assert not torch.equal(middle, by_last)
    assert not torch.allclose(middle, by_order, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids_and_dropout_reach_the_config(kind):
    model = build("tiny", kind, dropout=0.25)
    config = model.config
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 2, 3)
    assert config.vocab_size == 300
    rates = {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}
    assert 0.25 in rates
    silent = build("tiny", kind, dropout=0.0).train()
    ids = torch.randint(5, 300, (1, 16))
    with torch.no_grad():
        assert torch.equal(silent(input_ids=ids).logits, silent(input_ids=ids).logits)


@pytest.mark.parametrize("kind", KINDS)
def test_the_output_layer_is_tied_to_the_embeddings(kind):
    model = build("tiny", kind)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", ["mini", "small", "base"])
def test_named_sizes_hold_for_every_kind(kind, size):
    assert shape(build_without_weights(size, kind)) == SIZES[size]


def test_named_sizes_are_the_published_ones():
    published = {
        "tiny": (2, 128, 2), "mini": (4, 256, 4), "small": (4, 512, 8), "medium": (8, 512, 8),
        "base": (12, 768, 12), "large": (24, 1024, 16),
    }  # fmt: skip
    assert {name: tuple(SIZES[name]) for name in published} == published


@pytest.mark.parametrize("row", ABLATION, ids=lambda row: "-".join(map(str, row)))
def test_the_six_rows_of_the_size_ablation(row):
    model = build_without_weights("-".join(map(str, row)))
    assert shape(model) == row
    assert len(model.bert.encoder.layer) == row[0]
    assert model.config.intermediate_size == 4 * row[1]


@pytest.mark.parametrize(
    ("size", "low", "high"), [("base", 109e6, 111e6), ("large", 334e6, 341e6), ("tiny", 4.3e6, 4.5e6)]
)
def test_bert_has_the_published_number_of_parameters(size, low, high):
    """110M and 340M by Devlin et al. 2019, 4.4M by Turc et al. 2019."""
    model = build_without_weights(size, vocab=30522, max_length=512)
    assert low < parameters(model) < high


@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_every_kind_have_as_many_parameters_as_berts(kind):
    """About 12·H² parameters per layer; ALBERT shares one layer, DeBERTa adds relative positions."""
    model = build_without_weights("base", kind)
    layers = 1 if kind == "albert" else 12
    expected = layers * 12 * 768**2
    stack = [p.numel() for name, p in model.named_parameters() if "layer" in name and "embeddings" not in name]
    assert sum(stack) == pytest.approx(expected, rel=0.1)


def test_unknown_size_raises():
    with pytest.raises(ValidationError, match=r"one of tiny, mini, small, medium, base, large, 3-768-12"):
        Encoder.Config(size="huge")
    with pytest.raises(ValidationError, match=r"'bert', 'roberta'"):
        Encoder.Config(kind="gpt")
