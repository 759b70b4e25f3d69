"""Cross-entropy over a vocabulary in chunks of positions, so that the full logits are never in memory.

For a batch of 8,192 tokens and a vocabulary of 32,768 the logits take 1 GiB, and their gradient as much again. The
forward pass here computes the logits of one chunk, its loss and the gradients with respect to the states and the
head's parameters, and then frees the logits. Nothing is computed twice: the backward pass only scales the stored
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions

from headstart.core.data import Batch
from headstart.objectives.base import BaseObjective
from headstart.objectives.cross_entropy import loss_with_gradient, summed_cross_entropy

HeadFunction = Callable[[torch.Tensor], torch.Tensor]
"""Maps hidden states (rows, positions, hidden) to logits (rows, positions, vocabulary)."""


class TextObjective(BaseObjective):
    """Base class of objectives that generate text with a decoder or an encoder-decoder; the loss is chunked.

    A batch contains `input_ids`, `labels` and `weights`. The labels of a decoder are its input, each predicted by the
    previous position. The labels of an encoder-decoder are the decoder's output; its decoder input is shifted right.
    """

    config: Any
    """A section whose field `chunk` is the number of positions whose logits are in memory at a time."""

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy in nats, summed over the predicted positions."""
        states, labels, weights = predictions(model, batch)
        return chunked_loss(partial(head_logits, model), states, labels, weights, self.config.chunk)

    @torch.no_grad()
    def measure(self, model: PreTrainedModel, batch: Batch) -> dict[str, float]:
        """Return loss in nats and correct predictions, summed over the predicted positions."""
        states, labels, weights = predictions(model, batch)
        loss = correct = 0.0
        for chunk_states, chunk_labels, chunk_weights in _chunks(states, labels, weights, self.config.chunk):
            logits = head_logits(model, chunk_states[None])[0]
            loss += float(summed_cross_entropy(logits, chunk_labels, chunk_weights))
            correct += float(((logits.argmax(-1) == chunk_labels) * chunk_weights).sum())
        return {"loss": loss, "accuracy": correct}

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the batch without its weights; labels are -100 where nothing is predicted."""
        inputs = {name: tensor for name, tensor in batch.items() if name != "weights"}
        return inputs | {"labels": batch["labels"].masked_fill(batch["weights"] == 0, -100)}


def predictions(model: PreTrainedModel, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the network without its head and return the predicting states with their labels and weights."""
    labels, weights, mask = batch["labels"], batch["weights"], batch.get("attention_mask")
    if not model.config.is_encoder_decoder:
        output = model.base_model(input_ids=batch["input_ids"], attention_mask=mask, use_cache=False)
        return output.last_hidden_state[:, :-1], labels[:, 1:], weights[:, 1:]
    encoder_states = model.get_encoder()(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
    output = model.get_decoder()(
        input_ids=cast(Any, model).prepare_decoder_input_ids_from_labels(labels=labels),
        encoder_hidden_states=encoder_states,
        encoder_attention_mask=mask,
        use_cache=False,
    )
    return output.last_hidden_state, labels, weights


def head_logits(model: PreTrainedModel, states: torch.Tensor) -> torch.Tensor:
    """Return the logits of a transformers model for given hidden states, shape (rows, positions, hidden).

    The model's own forward pass runs with these states in place of its body's output, so each head behaves as in the
    full model: T5 scales the states, BART adds a bias, others cap the logits.
    """
    body: torch.nn.Module = model.get_decoder() if model.config.is_encoder_decoder else model.base_model
    inputs: dict[str, Any] = {"inputs_embeds": states}
    if model.config.is_encoder_decoder:
        inputs = {"decoder_inputs_embeds": states, "encoder_outputs": BaseModelOutput(cast(Any, states))}
    with _fixed_output(body, BaseModelOutputWithPastAndCrossAttentions(cast(Any, states))):
        logits: torch.Tensor = model(**inputs, use_cache=False).logits
    return logits


def chunked_loss(
    head: HeadFunction, states: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, chunk: int
) -> torch.Tensor:
    """Return the weighted sum of the cross-entropy of labels (rows, positions), computed in chunks of positions."""
    if not torch.is_grad_enabled():
        losses = [
            summed_cross_entropy(head(chunk_states[None])[0], chunk_labels, chunk_weights)
            for chunk_states, chunk_labels, chunk_weights in _chunks(states, labels, weights, chunk)
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
        chunks = _chunks(states, labels, weights, chunk)
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


def _chunks(
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


@contextmanager
def _fixed_output(module: torch.nn.Module, output: Any) -> Iterator[None]:
    """Make a module return `output` without running, within the context."""
    original = module.__dict__.get("forward")
    module.forward = lambda *_, **__: output  # type: ignore[method-assign]
    try:
        yield
    finally:
        if original is None:
            del module.forward
        else:
            module.forward = original  # type: ignore[method-assign]
