"""Partial fine-tuning: the lower layers are frozen, those above them train."""

from __future__ import annotations

import pytest
import torch

from headstart.adaptation.layers import levels
from headstart.adaptation.top_layers import TopLayers
from headstart.core.errors import RecipeError


@pytest.mark.parametrize(("kind", "freeze", "lowest"), [("bert", None, 2), ("modernbert", 0, 1), ("modernbert", 1, 2),
                                                        ("deberta-v2", 1, 2), ("albert", None, 1)])  # fmt: skip
def test_the_lower_layers_are_frozen(given_of, kind, freeze, lowest):
    model = TopLayers(TopLayers.Config(freeze=freeze)).adapt(given_of(kind).source)
    trainable = {level for name, level in levels(model).items() if model.get_parameter(name).requires_grad}
    assert trainable == {*range(lowest, max(levels(model).values()) + 1)}


def test_frozen_layers_get_no_gradient_and_do_not_change(given_of):
    given = given_of("modernbert")
    method = TopLayers()
    model = method.adapt(given.source)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    (group,) = method.groups(model)
    optimizer = torch.optim.AdamW([model.get_parameter(name) for name in group.names], lr=0.1, weight_decay=0.5)
    given.loss(model, 0, 1, 2).backward()
    optimizer.step()
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed and min(levels(model)[name] for name in changed) == 2
    assert all(p.grad is None for name, p in model.named_parameters() if levels(model)[name] < 2)


def test_one_layer_must_remain_trainable(given_of):
    with pytest.raises(RecipeError, match=r"adaptation\.freeze is 2, but .* has 2 layers"):
        TopLayers(TopLayers.Config(freeze=2)).adapt(given_of("bert").source)
    with pytest.raises(RecipeError, match="shared by 2"):
        TopLayers(TopLayers.Config(freeze=1)).adapt(given_of("albert").source)
