"""FLOPs per token of a model, counted on one training step."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from headstart.core.data import Batch


def flops_per_token(module: torch.nn.Module, batch: Batch, tokens: int) -> float:
    """Return the floating-point operations per token of one training step, forward and backward.

    torch's counter sees the matrix products that are actually computed: an output head on the masked positions only,
    ALBERT's shared layer as often as it runs, a generator beside a discriminator, no backward pass through frozen
    layers. Gradients are unset before and after.
    """
    device = next(module.parameters()).device
    with FlopCounterMode(display=False) as counter:
        module({name: tensor.to(device) for name, tensor in batch.items()}).backward()
    module.zero_grad(set_to_none=True)
    return float(counter.get_total_flops()) / tokens
