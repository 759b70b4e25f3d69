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
        values = _less_the_largest(logits[rows], None if gradient is None else gradient[rows])
        chosen = values.gather(1, label)
        values.exp_()
        whole = values.sum(1, keepdim=True)
        total += ((whole.log() - chosen) * weight).sum()
        if gradient is not None:
            values *= weight / whole
            values.scatter_add_(1, label, -weight)
            if gradient.dtype != torch.float32:
                gradient[rows] = values
    return total


def _less_the_largest(logits: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
    """Return each row in fp32 less its largest, in the place of the gradient if that is in fp32 too."""
    if logits.dtype == torch.float32:
        return torch.sub(logits, logits.amax(1, keepdim=True), out=gradient)
    values = logits.float()
    return values.sub_(values.amax(1, keepdim=True))


class _SummedCrossEntropy(torch.autograd.Function):
    """The weighted sum, and its gradient by the logits."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        ctx.gradient = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        return loss_with_gradient(logits, labels, weights, ctx.gradient)

    @staticmethod
    def backward(ctx: Any, above: torch.Tensor) -> Any:
        # Taken, not kept: it is as wide as the vocabulary, and multiplied where it lies.
        gradient = ctx.gradient
        del ctx.gradient
        return gradient.mul_(above), None, None
