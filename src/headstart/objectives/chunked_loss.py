"""Cross-entropy over a vocabulary in chunks of positions, so that the full logits are never in memory.

For a batch of 8,192 tokens and a vocabulary of 32,768 the logits take 1 GiB, and their gradient as much again. The
forward pass here computes the logits of one chunk, its loss and the gradients with respect to the states and the
head's parameters, and then frees the logits. Nothing is computed twice: the backward pass only scales the stored
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from headstart.objectives.cross_entropy import loss_with_gradient, summed_cross_entropy

HeadFunction = Callable[[torch.Tensor], torch.Tensor]
"""Maps hidden states (rows, positions, hidden) to logits (rows, positions, vocabulary)."""


def chunked_loss(
    head: HeadFunction, states: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, chunk: int
) -> torch.Tensor:
    """Return the weighted sum of the cross-entropy of labels (rows, positions), computed in chunks of positions."""
    if not torch.is_grad_enabled():
        losses = [
            summed_cross_entropy(head(chunk_states[None])[0], chunk_labels, chunk_weights)
            for chunk_states, chunk_labels, chunk_weights in split_chunks(states, labels, weights, chunk)
        ]
        return torch.stack(losses).sum()
    parameters = _leaf_parameters(head(states[:1, :1].detach()))
    loss: torch.Tensor = _ChunkedCrossEntropy.apply(head, chunk, states, labels, weights, *parameters)
    return loss


class _ChunkedCrossEntropy(torch.autograd.Function):
    """The sum over chunks; the forward pass also computes the gradients for the states and the head's parameters."""

    @staticmethod
    def forward(
        ctx: Any,
        head: HeadFunction,
        chunk: int,
        states: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor,
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        total = states.new_zeros((), dtype=torch.float32)
        state_grads, parameter_grads = torch.empty_like(states).flatten(0, 1), list[torch.Tensor]()
        chunks = split_chunks(states, labels, weights, chunk)
        for grad_out, (chunk_states, chunk_labels, chunk_weights) in zip(state_grads.split(chunk), chunks, strict=True):
            with torch.enable_grad():
                chunk_states = chunk_states.detach().requires_grad_()
                logits = head(chunk_states[None])[0]  # (chunk, vocabulary)
            # The gradient overwrites the logits, so only one tensor of this size exists.
            total += loss_with_gradient(logits.detach(), chunk_labels, chunk_weights, logits.detach())
            chunk_grad, *grads = torch.autograd.grad(logits, [chunk_states, *parameters], logits.detach())
            del logits
            grad_out.copy_(chunk_grad)
            if not parameter_grads:
                parameter_grads = [grad.float() for grad in grads]
            else:
                for accumulated, grad in zip(parameter_grads, grads, strict=True):
                    accumulated += grad
        ctx.gradients = state_grads.view_as(states), *parameter_grads
        ctx.dtypes = [parameter.dtype for parameter in parameters]
        return total

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        # Remove the references from ctx, so that autograd can use these tensors as `.grad` without a copy.
        state_grads, *parameter_grads = ctx.gradients
        del ctx.gradients
        scaled = [grad.mul_(grad_output).to(dtype) for grad, dtype in zip(parameter_grads, ctx.dtypes, strict=True)]
        return None, None, state_grads.mul_(grad_output), None, None, *scaled


def split_chunks(
    states: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, chunk: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield states, labels and weights of `chunk` positions at a time; labels of -100 (weight 0) become 0."""
    parts = (tensor.split(chunk) for tensor in (states.flatten(0, 1), labels.flatten().clamp(min=0), weights.flatten()))
    return zip(*parts, strict=True)


def _leaf_parameters(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the parameters that a tensor was computed from."""
    leaves: dict[int, torch.Tensor] = {}
    seen, stack = set[Any](), [tensor.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves[id(node.variable)] = node.variable
        stack.extend(following for following, _ in node.next_functions)
    return list(leaves.values())
