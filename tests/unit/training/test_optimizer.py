"""AdamW's groups: weight decay on matrices only, and a learning-rate factor per group."""

from __future__ import annotations

import pytest
import torch

from headstart.core.data import ParameterGroup
from headstart.training import optimizer


def names_of(module, built, matches) -> set[str]:
    by_id = {id(p): name for name, p in module.named_parameters()}
    return {by_id[id(p)] for group in built.param_groups if matches(group) for p in group["params"]}


def test_only_matrices_decay(toy):
    module = toy.Learner().module
    groups = toy.Learner().parameter_groups()
    built = optimizer.build(module, groups, toy.settings(weight_decay=0.1))
    assert names_of(module, built, lambda g: g["weight_decay"] == 0.1) == {"embedding.weight", "hidden.weight"}
    rest = {"hidden.bias", "norm.weight", "norm.bias", "output.bias", "idle"}
    assert names_of(module, built, lambda g: g["weight_decay"] == 0.0) == rest


def test_each_group_keeps_its_factor(toy):
    module = toy.Learner().module
    groups = [ParameterGroup(("embedding.weight", "hidden.bias"), 0.1), ParameterGroup(("hidden.weight",), 2.0)]
    built = optimizer.build(module, groups, toy.settings())
    optimizer.set_rate(built, 0.01)
    rates = {name: g["lr"] for g in built.param_groups for name in names_of(module, built, lambda x, g=g: x is g)}
    assert rates == pytest.approx({"embedding.weight": 0.001, "hidden.bias": 0.001, "hidden.weight": 0.02})
    optimizer.set_rate(built, 0.0)
    assert all(group["lr"] == 0 for group in built.param_groups)


def test_frozen_parameters_are_left_out(toy):
    learner = toy.Learner()
    learner.module.hidden.requires_grad_(False)
    built = optimizer.build(learner.module, learner.parameter_groups(), toy.settings())
    assert not {"hidden.weight", "hidden.bias"} & names_of(learner.module, built, lambda _: True)


def test_settings_reach_adam(toy):
    learner = toy.Learner()
    given = toy.settings(adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-7, learning_rate=0.003)
    built = optimizer.build(learner.module, learner.parameter_groups(), given)
    for group in built.param_groups:
        assert (group["betas"], group["eps"], group["lr"]) == ((0.8, 0.95), 1e-7, 0.003)


def test_weight_decay_shrinks_matrices_and_not_vectors(toy):
    learner = toy.Learner()
    before = toy.weights(learner)
    built = optimizer.build(learner.module, learner.parameter_groups(), toy.settings(weight_decay=0.5))
    optimizer.set_rate(built, 0.1)
    for parameter in learner.module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    built.step()
    after = toy.weights(learner)
    assert torch.allclose(after["hidden.weight"], before["hidden.weight"] * 0.95)
    assert torch.equal(after["norm.weight"], before["norm.weight"])
