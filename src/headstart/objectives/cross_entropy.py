"""Cross-entropy over a vocabulary that finds its gradient on the way, a few rows at a time.

torch's own writes the logits in fp32, their log-softmax, a field of zeros and the gradient whole, each larger
than the processor's cache. Here a few rows go through all of it while they are in the cache, and the gradient alone is
kept, in the logits' format. Measured on one core, 608 × 16,384 logits in bf16: 25 against 110 ms, both ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_CACHED = 1 << 18
"""Logits treated together: 1 MB in fp32, half of a core's second cache."""


def summed_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy in nats of labels under logits of shape (predictions, vocabulary), summed by weights."""
    loss: torch.Tensor = _SummedCrossEntropy.apply(logits, labels, weights)
    return loss


def few_rows(logits: torch.Tensor) -> Iterator[slice]:
    """Yield the rows of logits in lots that fit into a processor's cache; another device takes all at once."""
    together = max(1, _CACHED // logits.shape[1]) if logits.device.type == "cpu" else max(1, len(logits))
    for start in range(0, len(logits), together):
        yield slice(start, start + together)


def loss_with_gradient(
    logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, gradient: torch.Tensor | None
) -> torch.Tensor:
    """Return the sum, and write its gradient by the logits into a tensor, which may be the logits themselves."""
    total = torch.zeros((), dtype=torch.float32, device=logits.device)
    for rows in few_rows(logits):
        label, weight = labels[rows].unsqueeze(1), weights[rows].unsqueeze(1).float()
        values = logits[rows].to(torch.float32, copy=True)
        values -= values.amax(1, keepdim=True)
        chosen = values.gather(1, label)
        values.exp_()
        whole = values.sum(1, keepdim=True)
        total += ((whole.log() - chosen) * weight).sum()
        if gradient is not None:
            values *= weight / whole
            values.scatter_add_(1, label, -weight)
            gradient[rows] = values
    return total


class _SummedCrossEntropy(torch.autograd.Function):
    """The weighted sum, and its gradient by the logits."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        gradient = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        total = loss_with_gradient(logits, labels, weights, gradient)
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, above: torch.Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * above, None, None
