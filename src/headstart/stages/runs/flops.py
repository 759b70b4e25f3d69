"""FLOPs per token of a model, counted on one training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from headstart.core.data import Batch
from headstart.training.deferred import is_deferred

Shape = Sequence[int]
_aten = torch.ops.aten
_FUSED_ATTENTION = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
"""The kernels behind `torch.nn.functional.scaled_dot_product_attention`; without one, it runs plain products."""


def counting_flops() -> FlopCounterMode:
    """Return torch's FLOP counter, with formulas for all fused attention kernels.

    torch 2.13 has none for the kernel of the CPU, and counts the products that the GPU's kernels compute a second time
    in their backward pass. Here attention costs what its products cost in eager mode, whatever kernel runs: two
    products forward and four backward.
    """
    return FlopCounterMode(display=False, custom_mapping=_formulas())


def flops_per_token(module: torch.nn.Module, batch: Batch, tokens: int) -> float:
    """Return the floating-point operations per token of one training step, forward and backward.

    torch's counter sees the matrix products that are actually computed: an output head on the masked positions only,
    ALBERT's shared layer as often as it runs, a generator beside a discriminator, no backward pass through frozen
    layers. Gradients are unset before and after.
    """
    if is_deferred(module):
        return _flops_in_shape(module, batch) / tokens
    device = next(module.parameters()).device
    with counting_flops() as counter:
        module({name: tensor.to(device) for name, tensor in batch.items()}).backward()
    module.zero_grad(set_to_none=True)
    return float(counter.get_total_flops()) / tokens


def _flops_in_shape(module: torch.nn.Module, batch: Batch) -> float:
    """Return the FLOPs of one training step of a module whose weights are not in memory; nothing is computed."""
    with FakeTensorMode(allow_non_fake_inputs=True), counting_flops() as counter:
        weights = {
            name: torch.empty(p.shape, dtype=p.dtype, requires_grad=p.requires_grad)
            for name, p in module.named_parameters()
        }
        torch.func.functional_call(module, weights, (dict(batch),)).backward()
    return float(counter.get_total_flops())


def _attention(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """Return the FLOPs of queries × keys and of weights × values; shapes are (rows, heads, length, width)."""
    rows, heads, queries, width = query  # keys and values may have fewer heads, which the kernel repeats
    return 2 * rows * heads * queries * key[2] * (width + value[3])


def _attention_backward(grad_output: Shape, query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """Return the FLOPs of two products for each of those forward: one for the gradient of each factor."""
    return 2 * _attention(query, key, value)


def _formulas() -> dict[Any, Callable[..., int]]:
    """Return the formula of each fused kernel that this version of torch has."""
    formulas: dict[Any, Callable[..., int]] = {}
    for kernel in _FUSED_ATTENTION:
        for suffix, formula in (("", _attention), ("_backward", _attention_backward)):
            operation = getattr(_aten, f"_scaled_dot_product_{kernel}{suffix}", None)
            if operation is not None:
                formulas[operation] = formula
    return formulas
