"""T5's relative position bias in compiled layers."""

from __future__ import annotations

from typing import Any

import torch
from transformers.models.t5.modeling_t5 import T5Attention


def use_eager_bias(module: torch.nn.Module) -> None:
    """Make every T5 attention with a relative position table compute its bias outside compiled code."""
    for attention in module.modules():
        if type(attention) is T5Attention and attention.has_relative_attention_bias:
            attention.__class__ = _EagerBiasAttention


class _EagerBiasAttention(T5Attention):
    """T5's attention with its position bias computed outside the compiled layer, as a contiguous tensor.

    Computed inside, the bias reaches every layer with the heads as the innermost dimension, so each layer computes its
    softmax element by element, and the table's gradient is summed the same way. With the bias outside, T5 small in
    fp32 trains 1.10 × as fast. Weights and their names are those of transformers' class.
    """

    @torch.compiler.disable
    def compute_bias(self, *arguments: Any, **settings: Any) -> torch.Tensor:
        """Return the position bias as a contiguous tensor of shape (1, heads, queries, keys)."""
        bias: torch.Tensor = super().compute_bias(*arguments, **settings)
        return bias.contiguous()
