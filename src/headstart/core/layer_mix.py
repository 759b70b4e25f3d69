"""ELMo's mixture of layers: a softmax-weighted mean of hidden states, times a scale.

A backbone (the biLM) and an adaptation (frozen features) both need it, and neither may import the other. Torch is
imported for type checkers only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def mix_layers(layers: Iterable[torch.Tensor], weights: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return `scale` times the mean of the layers, weighted by the softmax of `weights`, one weight per layer.

    Paper: Peters et al. 2018, ELMo, equation 1.
    """
    mixed: torch.Tensor = scale * sum(w * states for w, states in zip(weights.softmax(0), layers, strict=True))
    return mixed
