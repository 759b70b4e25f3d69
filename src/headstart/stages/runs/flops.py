"""What a model costs per token, counted on a step of its own."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from headstart.core.data import Batch


def flops_per_token(module: torch.nn.Module, batch: Batch, tokens: int) -> float:
    """Return the floating-point operations per token of one training step, forwards and backwards.

    torch's own counter sees the products of matrices that really take place: an output head on the masked positions
    alone, ALBERT's shared layer as often as it runs, a generator beside a discriminator, no backward pass through what
    is frozen. Gradients are left as they were found: unset.
    """
    device = next(module.parameters()).device
    with FlopCounterMode(display=False) as counter:
        module({name: tensor.to(device) for name, tensor in batch.items()}).backward()
    module.zero_grad(set_to_none=True)
    return float(counter.get_total_flops()) / tokens
