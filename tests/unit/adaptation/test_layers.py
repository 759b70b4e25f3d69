"""Where parameters stand, in every layout; and top layers that start anew."""

from __future__ import annotations

import re

import pytest
import torch
from tests.unit.adaptation.conftest import LAYOUTS

from headstart.adaptation.full import Full
from headstart.adaptation.layers import depth, from_the_top, levels, load, repetitions, require_depth
from headstart.core.errors import RecipeError

DEPTHS = {"albert": 1, "t5": 4, "bart": 4}
BELOW = re.compile(r"embed|wte|wpe|shared|mask_emb|bilm\.tokens|encoder\.LayerNorm")
IN_LAYERS = re.compile(r"(?<!bilm\.tokens)\.(?:layers?|h|block|albert_layer_groups)\.(\d+)\.")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_parameter_has_its_level(layout, network):
    model = network(layout, num_labels=3)
    found = levels(model)
    assert found.keys() == {name for name, _ in model.named_parameters()}
    assert depth(model) == DEPTHS.get(layout, 2)
    top = depth(model) + 1
    assert {*found.values()} == {*range(top + 1)}
    for name, level in found.items():
        number = IN_LAYERS.search(name)
        if number:
            assert level == 1 + int(number[1]) + (2 if "decoder." in name and depth(model) == 4 else 0), name
        else:
            assert (level == 0) == bool(BELOW.search(name)), name
    body = {id(parameter) for parameter in model.base_model.parameters()}
    outside = {name for name, parameter in model.named_parameters() if id(parameter) not in body}
    assert outside and all(found[name] == top for name in outside)


@pytest.mark.parametrize(("layout", "head"), [("bert", "pooler"), ("modernbert", "final_norm"), ("gpt2", "ln_f"),
                                              ("bilm", "mix"), ("t5", "decoder.final_layer_norm")])  # fmt: skip
def test_what_a_body_holds_above_its_layers_is_head(layout, head, network):
    model = network(layout, num_labels=3)
    found = levels(model)
    above = [name for name in found if head in name]
    assert above and all(found[name] == depth(model) + 1 for name in above)


def test_an_encoders_norm_belongs_to_its_last_layer(network):
    assert levels(network("t5", num_labels=3))["transformer.encoder.final_layer_norm.weight"] == 2


@pytest.mark.parametrize("layout", ["bert", "gpt2", "t5", "bart"])
def test_a_body_alone_and_a_tied_head_have_levels_too(layout, network):
    body = network(layout, "AutoModel")
    assert {*levels(body).values()} >= {*range(depth(body) + 1)}
    auto = {"bert": "AutoModelForMaskedLM", "gpt2": "AutoModelForCausalLM"}.get(layout, "AutoModelForSeq2SeqLM")
    model = network(layout, auto)
    found = levels(model)
    tied = next(name for name, p in model.named_parameters() if p is model.get_output_embeddings().weight)
    assert found[tied] == 0


def test_from_the_top_leaves_out_what_is_frozen(network):
    model = network("bert", num_labels=3)
    model.bert.embeddings.requires_grad_(False)
    stages = from_the_top(model)
    assert [sorted({levels(model)[name] for name in names}) for names in stages] == [[3], [2], [1]]
    assert sorted(name for names in stages for name in names) == sorted(
        name for name, p in model.named_parameters() if p.requires_grad
    )


def test_shared_layers_are_counted_once_and_run_often(network):
    albert = network("albert", num_labels=3)
    assert (depth(albert), repetitions(albert)) == (1, 2)
    with pytest.raises(RecipeError, match="1 layer of weights, shared by 2"):
        require_depth(albert, 1, "adaptation.freeze")
    require_depth(network("t5", num_labels=3), 3, "adaptation.freeze")
    assert repetitions(network("t5", num_labels=3)) == 2


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_reinitialised_layers_are_new_and_the_others_the_checkpoints(given_of, kind):
    source = given_of(kind).source
    old, fresh = source.pretrained(), source.fresh()
    model = load(source, 1)
    for name, level in levels(model).items():
        mine = model.get_parameter(name)
        assert torch.equal(mine, (fresh if level >= 2 else old).get_parameter(name)), name
    changed = [
        n for n, p in model.named_parameters() if levels(model)[n] == 2 and not torch.equal(p, old.get_parameter(n))
    ]
    assert any(p.ndim > 1 for p in map(model.get_parameter, changed))
    assert source.new_parameters() == {n for n in source.new_parameters() if levels(model)[n] == 3}
    again = Full(Full.Config(reinit_layers=1)).adapt(source)
    assert all(torch.equal(p, again.get_parameter(name)) for name, p in model.named_parameters())


def test_not_all_layers_can_start_anew(given_of):
    with pytest.raises(RecipeError, match=r"adaptation\.reinit_layers is 2; .* has 2 layers of weights"):
        load(given_of("bert").source, 2)
