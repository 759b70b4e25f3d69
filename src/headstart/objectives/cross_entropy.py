"""Cross-entropy over a vocabulary that computes its gradient in the forward pass, a few rows at a time.

torch's version materializes the fp32 logits, their log-softmax, a tensor of zeros and the gradient, each larger than
the CPU cache. Here a block of rows that fits into the cache goes through all steps, and only the gradient is kept, in
the logits' dtype. Measured on one core, 608 × 16,384 logits in bf16, forward and backward: 25 against 110 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_BLOCK_SIZE = 1 << 18
"""Logits per block: 1 MB in fp32, half of a core's L2 cache."""


def summed_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum of the cross-entropy in nats, for logits of shape (predictions, vocabulary)."""
    loss: torch.Tensor = _SummedCrossEntropy.apply(logits, labels, weights)
    return loss


def row_blocks(logits: torch.Tensor) -> Iterator[slice]:
    """Yield slices of rows that fit into the CPU cache together; on other devices one slice of all rows."""
    block = max(1, _BLOCK_SIZE // logits.shape[1]) if logits.device.type == "cpu" else max(1, len(logits))
    for start in range(0, len(logits), block):
        yield slice(start, start + block)


def loss_with_gradient(
    logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, gradient: torch.Tensor | None
) -> torch.Tensor:
    """Return the weighted sum, and write its gradient into `gradient`, which may be `logits` itself."""
    total = torch.zeros((), dtype=torch.float32, device=logits.device)
    for rows in row_blocks(logits):
        label, weight = labels[rows].unsqueeze(1), weights[rows].unsqueeze(1).float()
        values = _minus_max(logits[rows], None if gradient is None else gradient[rows])
        label_values = values.gather(1, label)
        values.exp_()
        partition = values.sum(1, keepdim=True)
        total += ((partition.log() - label_values) * weight).sum()
        if gradient is not None:
            values *= weight / partition
            values.scatter_add_(1, label, -weight)
            if gradient.dtype != torch.float32:
                gradient[rows] = values
    return total


def _minus_max(logits: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
    """Return each row minus its maximum in fp32, written into `gradient` if the logits are fp32."""
    if logits.dtype == torch.float32:
        return torch.sub(logits, logits.amax(1, keepdim=True), out=gradient)
    values = logits.float()
    return values.sub_(values.amax(1, keepdim=True))


class _SummedCrossEntropy(torch.autograd.Function):
    """The weighted sum and its gradient with respect to the logits."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        ctx.gradient = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        return loss_with_gradient(logits, labels, weights, ctx.gradient)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        # Remove the reference from ctx: the gradient has the size of the logits and is scaled in place.
        gradient = ctx.gradient
        del ctx.gradient
        return gradient.mul_(grad_output), None, None
