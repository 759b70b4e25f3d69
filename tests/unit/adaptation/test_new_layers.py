"""New layers, or a perceptron, on a frozen body."""

from __future__ import annotations

import pytest
import torch
from tests.unit.adaptation.conftest import LAYOUTS
from transformers import AutoModelForSequenceClassification

from headstart.adaptation.layers import depth, levels
from headstart.adaptation.new_layers import NewLayers
from headstart.core.errors import RecipeError


class Source:
    """A source of networks of one layout, whose weights also load into a deeper network."""

    def __init__(self, network, layout: str) -> None:
        self.build, self.layout, self.new = network, layout, frozenset[str]()

    def pretrained(self, config=None):
        model = self.build(self.layout, num_labels=3)
        if config is None:
            return model
        deeper = type(model)(config)
        weights = {name: value for name, value in model.state_dict().items() if "mix." not in name}
        self.new = frozenset(deeper.load_state_dict(weights, strict=False).missing_keys)
        return deeper

    def new_parameters(self) -> frozenset[str]:
        return self.new


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout not in ("albert", "characters")])
def test_every_layout_without_shared_layers_gets_new_top_layers(network, layout):
    source = Source(network, layout)
    old, model = source.pretrained(), NewLayers(NewLayers.Config(layers=2)).adapt(source)
    assert depth(model) == depth(old) + 2
    layers = {level for name, level in levels(model).items() if name in source.new and level <= depth(model)}
    assert layers == {depth(old) + 1, depth(old) + 2}
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    inside = {name for name in trainable if id(model.get_parameter(name)) in map(id, model.base_model.parameters())}
    assert {name for name in inside if "pooler" not in name} <= source.new
    assert layers <= {levels(model)[name] for name in trainable}
    ids = torch.tensor([[2, 7, 8, 9, 3]])
    assert model.eval()(input_ids=ids).logits.shape == (1, 3)


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_a_deeper_network_is_plain(given_of, kind, tmp_path):
    given = given_of(kind)
    method = NewLayers()
    model = method.adapt(given.source)
    assert method.finish(model) is model and model.config.num_hidden_layers == 3
    original = given.source.pretrained().state_dict()
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen and all(torch.equal(model.get_parameter(name), original[name]) for name in frozen)
    model.save_pretrained(str(tmp_path))
    loaded, info = AutoModelForSequenceClassification.from_pretrained(str(tmp_path), output_loading_info=True)
    assert not any(info.values())
    torch.testing.assert_close(given.logits(loaded, 0, 1), given.logits(model, 0, 1), atol=1e-5, rtol=1e-4)


def test_networks_with_shared_layers_are_rejected(given_of):
    with pytest.raises(RecipeError, match="share their weights"):
        NewLayers().adapt(given_of("albert").source)


@pytest.mark.parametrize("kind", ["bert", "albert", "modernbert"])
def test_a_perceptron_starts_as_the_identity_and_trains_on_cached_states(given_of, kind):
    given = given_of(kind)
    method = NewLayers(NewLayers.Config(kind="perceptron", hidden=24))
    model, plain = method.adapt(given.source), given.source.pretrained()
    torch.testing.assert_close(given.logits(model, 0, 1, 2), given.logits(plain, 0, 1, 2), atol=2e-5, rtol=1e-4)
    body = model.base_model
    assert len(body.cache) == 3 and body.top.inner.out_features == 24
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(2):
        given.loss(model, 0, 1, 2).backward()
        optimizer.step()
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    top = {f"{model.base_model_prefix}.top.{name}" for name, _ in body.top.named_parameters()}
    assert {name for name in changed if ".top." in name} == top
    assert not any(".body." in name and "pooler" not in name for name in changed)
