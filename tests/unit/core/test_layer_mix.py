"""The mixture of layers: equal weights give the mean, and a missing layer is an error."""

from __future__ import annotations

import pytest
import torch

from headstart.core.layer_mix import mix_layers

LAYERS = [torch.full((2, 3), float(value)) for value in (1, 2, 6)]


def test_equal_weights_give_the_scaled_mean():
    mixed = mix_layers(LAYERS, torch.zeros(3), torch.tensor([2.0]))
    torch.testing.assert_close(mixed, torch.full((2, 3), 6.0))


def test_weights_go_through_a_softmax():
    weights = torch.tensor([0.3, -1.0, 2.0])
    mixed = mix_layers(LAYERS, weights, torch.ones(1))
    expected = float((weights.softmax(0) * torch.tensor([1.0, 2.0, 6.0])).sum())
    torch.testing.assert_close(mixed, torch.full((2, 3), expected))


def test_there_must_be_one_weight_per_layer():
    with pytest.raises(ValueError, match="zip"):
        mix_layers(LAYERS, torch.zeros(2), torch.ones(1))
