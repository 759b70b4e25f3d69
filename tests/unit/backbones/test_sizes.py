"""Sizes by name and by numbers."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from headstart.backbones.decoder import Decoder
from headstart.backbones.encoder import Encoder
from headstart.backbones.encoder_decoder import EncoderDecoder
from headstart.backbones.lstm import BiLM
from headstart.backbones.sizes import SIZES, Size
from headstart.backbones.xlnet import XLNet
from headstart.core.vocabulary import vocabulary_of

FAMILIES = {
    Encoder: "AutoModelForMaskedLM", Decoder: "AutoModelForCausalLM", EncoderDecoder: "AutoModelForSeq2SeqLM",
    XLNet: "AutoModel", BiLM: "AutoModel",
}  # fmt: skip


@pytest.mark.parametrize(("settings", "expected"), [
    ({}, SIZES["mini"]), ({"size": "base"}, SIZES["base"]), ({"layers": 6, "hidden": 384}, Size(6, 384, 6)),
    ({"layers": 6, "hidden": 384, "heads": 12}, Size(6, 384, 12)), ({"size": "tiny", "layers": 3}, Size(3, 128, 2)),
    ({"hidden": 48}, Size(4, 48, 1)),
])  # fmt: skip
def test_numbers_replace_those_of_the_name(settings, expected):
    assert Encoder.Config(**settings).dimensions() == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_builds_a_network_of_the_given_numbers(family, tiny_tokenizer):
    config = family.Config(layers=3, hidden=96, heads=3)
    model = family(config).build(vocabulary_of(tiny_tokenizer), 32, FAMILIES[family])
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (3, 96)
    assert family is BiLM or model.config.num_attention_heads == 3


def test_recipes_from_before_the_numbers_keep_their_hash():
    assert not {"layers", "hidden", "heads"} & Encoder.Config(size="tiny").model_dump().keys()
    numbers = {"layers": 2, "hidden": 32}
    assert numbers.items() <= Encoder.Config(**numbers).model_dump().items()


def test_heads_must_divide_the_hidden_size():
    with pytest.raises(ValidationError, match="hidden is 384 and heads is 5"):
        Encoder.Config(hidden=384, heads=5)
