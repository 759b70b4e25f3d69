"""The levels of parameters in every layout, and reinitialized top layers."""

from __future__ import annotations

import re

import pytest
import torch
from tests.unit.adaptation.conftest import LAYOUTS

from headstart.adaptation.full import Full
from headstart.adaptation.layers import depth, layers_run, levels, levels_from_top, load, require_depth
from headstart.core.errors import RecipeError

DEPTHS = {"albert": 1, "t5": 4, "bart": 4}
BELOW = re.compile(r"embed|wte|wpe|shared|mask_emb|bilm\.tokens|encoder\.LayerNorm")
IN_LAYERS = re.compile(r"(?<!bilm\.tokens)\.(?:layers?|h|block|albert_layer_groups)\.(\d+)\.")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_parameter_has_a_level(layout, network):
    model = network(layout, num_labels=3)
    level_of = levels(model)
    assert level_of.keys() == {name for name, _ in model.named_parameters()}
    assert depth(model) == DEPTHS.get(layout, 2)
    top = depth(model) + 1
    assert {*level_of.values()} == {*range(top + 1)}
    for name, level in level_of.items():
        layer = IN_LAYERS.search(name)
        if layer:
            assert level == 1 + int(layer[1]) + (2 if "decoder." in name and depth(model) == 4 else 0), name
        else:
            assert (level == 0) == bool(BELOW.search(name)), name
    body = {id(parameter) for parameter in model.base_model.parameters()}
    outside = {name for name, parameter in model.named_parameters() if id(parameter) not in body}
    assert outside and all(level_of[name] == top for name in outside)


@pytest.mark.parametrize(("layout", "head"), [("bert", "pooler"), ("modernbert", "final_norm"), ("gpt2", "ln_f"),
                                              ("bilm", "mix"), ("t5", "decoder.final_layer_norm")])  # fmt: skip
def test_parameters_of_the_body_above_its_layers_count_as_head(layout, head, network):
    model = network(layout, num_labels=3)
    level_of = levels(model)
    above = [name for name in level_of if head in name]
    assert above and all(level_of[name] == depth(model) + 1 for name in above)


def test_an_encoders_norm_belongs_to_its_last_layer(network):
    assert levels(network("t5", num_labels=3))["transformer.encoder.final_layer_norm.weight"] == 2


@pytest.mark.parametrize("layout", ["bert", "gpt2", "t5", "bart"])
def test_a_body_without_a_head_and_a_tied_head_have_levels(layout, network):
    body = network(layout, "AutoModel")
    assert {*levels(body).values()} >= {*range(depth(body) + 1)}
    auto = {"bert": "AutoModelForMaskedLM", "gpt2": "AutoModelForCausalLM"}.get(layout, "AutoModelForSeq2SeqLM")
    model = network(layout, auto)
    tied = next(name for name, p in model.named_parameters() if p is model.get_output_embeddings().weight)
    assert levels(model)[tied] == 0


def test_levels_from_top_skips_frozen_parameters(network):
    model = network("bert", num_labels=3)
    model.bert.embeddings.requires_grad_(False)
    stages = levels_from_top(model)
    assert [sorted({levels(model)[name] for name in names}) for names in stages] == [[3], [2], [1]]
    assert sorted(name for names in stages for name in names) == sorted(
        name for name, p in model.named_parameters() if p.requires_grad
    )


def test_shared_layers_count_once_in_the_depth_and_every_time_in_a_run(network):
    albert = network("albert", num_labels=3)
    assert (depth(albert), layers_run(albert)) == (1, 2)
    with pytest.raises(RecipeError, match="1 layer of weights, shared by 2"):
        require_depth(albert, 1, "adaptation.freeze")
    require_depth(network("t5", num_labels=3), 3, "adaptation.freeze")
    assert layers_run(network("t5", num_labels=3)) == 2


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_only_the_top_layers_are_reinitialized(given_of, kind):
    source = given_of(kind).source
    old, fresh = source.pretrained(), source.fresh()
    model = load(source, 1)
    for name, level in levels(model).items():
        assert torch.equal(model.get_parameter(name), (fresh if level >= 2 else old).get_parameter(name)), name
    changed = [
        n for n, p in model.named_parameters() if levels(model)[n] == 2 and not torch.equal(p, old.get_parameter(n))
    ]
    assert any(p.ndim > 1 for p in map(model.get_parameter, changed))
    assert source.new_parameters() == {n for n in source.new_parameters() if levels(model)[n] == 3}
    again = Full(Full.Config(reinit_layers=1)).adapt(source)
    assert all(torch.equal(p, again.get_parameter(name)) for name, p in model.named_parameters())


def test_one_layer_must_keep_its_weights(given_of):
    with pytest.raises(RecipeError, match=r"adaptation\.reinit_layers is 2, but .* has 2 layers of weights"):
        load(given_of("bert").source, 2)
