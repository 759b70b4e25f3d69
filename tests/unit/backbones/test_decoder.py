"""The decoder backbone: three layouts with named sizes."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from headstart.backbones.decoder import Decoder
from headstart.backbones.sizes import SIZES
from headstart.core.data import Vocabulary
from headstart.core.errors import RecipeError

KINDS = get_args(Decoder.Config.model_fields["kind"].annotation)


def build(size, kind, vocab=300, seq_length=32, auto_class="AutoModelForCausalLM", scale=1.0, changes=None, **settings):
    known = Vocabulary(vocab, 0, 2, 3, 4, special=np.arange(vocab) < 5, starts_word=np.ones(vocab, dtype=bool))
    decoder = Decoder(Decoder.Config(kind=kind, size=size, **settings))
    return decoder.build(known, seq_length, auto_class, scale, **(changes or {}))


def build_without_weights(*arguments, **settings):
    """Build on the meta device, so that a large model needs neither memory nor time."""
    with torch.device("meta"):
        return build(*arguments, **settings)


def shape(model):
    config = model.config
    return config.num_hidden_layers, config.hidden_size, config.num_attention_heads


def test_the_three_kinds():
    assert set(KINDS) == {"gpt2", "llama", "modernbert-decoder"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_reads_rows_up_to_max_length(kind):
    torch.manual_seed(0)
    model = build("tiny", kind, seq_length=64, max_length=64).eval()
    assert type(model) in AutoModelForCausalLM._model_mapping.values()
    assert shape(model) == (2, 128, 2)
    with torch.no_grad():
        logits = model(input_ids=torch.randint(5, 300, (2, 64))).logits
    assert logits.shape == (2, 64, 300)
    assert logits.isfinite().all()
    with pytest.raises(
        RecipeError, match=r"seq_length` is 65, but `backbone\.max_length` is 64.*raise `backbone\.max_length`"
    ):
        build("tiny", kind, seq_length=65, max_length=64)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_attends_to_all_previous_tokens_only(kind):
    """With 200 tokens, a sliding window of 64 would hide the first token from the last."""
    torch.manual_seed(0)
    model = build("tiny", kind).eval()
    ids = torch.randint(5, 300, (1, 200))
    first, later = ids.clone(), ids.clone()
    first[0, 0], later[0, 150] = 304 - ids[0, 0], 304 - ids[0, 150]
    with torch.no_grad():
        plain, by_first, by_later = (model(input_ids=one).logits[0] for one in (ids, first, later))
    assert torch.allclose(plain[:150], by_later[:150], atol=1e-5)
    assert not torch.allclose(plain[150:].mean(0), by_later[150:].mean(0), atol=1e-5)
    # One layer suffices to attend to the first token, so its effect on the last position is visible in float32.
    assert not torch.equal(plain[-1], by_first[-1])
    assert set(getattr(model.config, "layer_types", None) or ["full_attention"]) == {"full_attention"}


def test_long_rows_alternate_local_and_full_attention():
    layers = build_without_weights("base", "modernbert-decoder", max_length=1024).config.layer_types
    assert set(layers) == {"full_attention", "sliding_attention"}


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids_and_dropout_reach_the_network(kind):
    model = build("tiny", kind, dropout=0.25)
    config = model.config
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 2, 3)
    assert (model.generation_config.bos_token_id, model.generation_config.eos_token_id) == (2, 3)
    assert config.vocab_size == 300
    ids = torch.randint(5, 300, (1, 16))
    silent = build("tiny", kind, dropout=0.0).train()
    with torch.no_grad():
        assert not torch.equal(model.train()(input_ids=ids).logits, model(input_ids=ids).logits)
        assert torch.equal(silent(input_ids=ids).logits, silent(input_ids=ids).logits)


@pytest.mark.parametrize("kind", KINDS)
def test_the_output_layer_is_tied_to_the_embeddings(kind):
    model = build("tiny", kind)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", ["mini", "small", "base"])
def test_named_sizes_hold_for_every_kind(kind, size):
    assert shape(build_without_weights(size, kind)) == SIZES[size]
    assert shape(build_without_weights(size, kind, scale=0.5)) == SIZES[size].scaled(0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_every_kind_have_as_many_parameters_as_berts(kind):
    model = build_without_weights("base", kind)
    stack = [p.numel() for name, p in model.named_parameters() if ".h." in name or ".layers." in name]
    assert sum(stack) == pytest.approx(12 * 12 * 768**2, rel=0.1)


def test_gpt2_has_the_published_number_of_parameters():
    """124M for the smallest, as released (Radford et al. 2019 report 117M, a miscount that the authors corrected)."""
    model = build_without_weights("base", "gpt2", vocab=50257, max_length=1024)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(124.4e6, rel=0.001)


@pytest.mark.parametrize("kind", KINDS)
def test_a_classifier_can_be_built_on_every_kind(kind):
    torch.manual_seed(0)
    classifier = build("tiny", kind, auto_class="AutoModelForSequenceClassification", changes={"num_labels": 4}).eval()
    ids = torch.randint(5, 300, (2, 16))
    padded = torch.nn.functional.pad(ids, (0, 4), value=0)
    with torch.no_grad():
        logits = classifier(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        again = classifier(input_ids=padded, attention_mask=(padded != 0).long()).logits
    assert logits.shape == (2, 4)
    assert torch.allclose(logits, again, atol=1e-5), "the last token before padding determines the logits"


def test_unknown_size_or_kind_raises():
    with pytest.raises(ValidationError, match=r"one of tiny, mini, small, medium, base, large, 3-768-12"):
        Decoder.Config(size="huge")
    with pytest.raises(ValidationError, match=r"'gpt2', 'llama'"):
        Decoder.Config(kind="bert")
