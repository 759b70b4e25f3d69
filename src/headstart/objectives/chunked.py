"""Cross-entropy over a vocabulary in chunks of positions, so that the logits never stand whole in memory.

A batch of 8,192 tokens and a vocabulary of 32,768 take 1 GiB for the logits, and as much again for their gradient.
Here a chunk's logits, its loss and the gradients by states and parameters are worked out at once and the logits
dropped, so nothing is computed twice; the gradients wait for the backward pass, to be multiplied by the one from above.
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

Head = Callable[[torch.Tensor], torch.Tensor]


class TextObjective(BaseObjective):
    """The answers of an objective that writes text, by a decoder or an encoder-decoder, with its loss in chunks.

    A batch holds `input_ids`, `labels` and `weights`. A decoder's labels are its input, each predicted by the position
    before; an encoder-decoder's are what its decoder writes, and it reads them one place to the right.
    """

    config: Any
    """Its field `chunk` is the number of positions whose logits stand in memory at a time."""

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy in nats, summed over the predicted positions."""
        states, labels, weights = predictions(model, batch)
        return chunked_loss(partial(head_logits, model), states, labels, weights, self.config.chunk)

    @torch.no_grad()
    def measure(self, model: PreTrainedModel, batch: Batch) -> dict[str, float]:
        """Return sums over the batch's predictions: loss in nats and correct guesses."""
        states, labels, weights = predictions(model, batch)
        loss = hits = 0.0
        for part, wanted, counted in _chunks(states, labels, weights, self.config.chunk):
            logits = head_logits(model, part[None])[0]
            loss += float(summed_cross_entropy(logits, wanted, counted))
            hits += float(((logits.argmax(-1) == wanted) * counted).sum())
        return {"loss": loss, "accuracy": hits}

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the batch without its weights, -100 in the labels wherever nothing is predicted."""
        inputs = {name: tensor for name, tensor in batch.items() if name != "weights"}
        return inputs | {"labels": batch["labels"].masked_fill(batch["weights"] == 0, -100)}


def predictions(model: PreTrainedModel, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the network without its head; returns the states that predict, and the label and weight of each."""
    labels, weights, mask = batch["labels"], batch["weights"], batch.get("attention_mask")
    if not model.config.is_encoder_decoder:
        output = model.base_model(input_ids=batch["input_ids"], attention_mask=mask, use_cache=False)
        return output.last_hidden_state[:, :-1], labels[:, 1:], weights[:, 1:]
    read = model.get_encoder()(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
    output = model.get_decoder()(
        input_ids=cast(Any, model).prepare_decoder_input_ids_from_labels(labels=labels),
        encoder_hidden_states=read,
        encoder_attention_mask=mask,
        use_cache=False,
    )
    return output.last_hidden_state, labels, weights


def head_logits(model: PreTrainedModel, states: torch.Tensor) -> torch.Tensor:
    """Run a model of transformers with some states in place of its body's output, shape (rows, positions, hidden).

    So every head does what it does in the whole model: T5 scales the states, BART adds a bias, others cap the logits.
    """
    body: torch.nn.Module = model.get_decoder() if model.config.is_encoder_decoder else model.base_model
    inputs: dict[str, Any] = {"inputs_embeds": states}
    if model.config.is_encoder_decoder:
        inputs = {"decoder_inputs_embeds": states, "encoder_outputs": BaseModelOutput(cast(Any, states))}
    with _answering(body, BaseModelOutputWithPastAndCrossAttentions(cast(Any, states))):
        logits: torch.Tensor = model(**inputs, use_cache=False).logits
    return logits


def chunked_loss(
    head: Head, states: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, chunk: int
) -> torch.Tensor:
    """Return the weighted sum of the cross-entropy of labels, by rows and positions, under a head's logits."""
    if not torch.is_grad_enabled():
        parts = [_loss(head, *part) for part in _chunks(states, labels, weights, chunk)]
        return torch.stack(parts).sum()
    loss: torch.Tensor = _Chunked.apply(head, chunk, states, labels, weights, *_leaves(head(states[:1, :1].detach())))
    return loss


class _Chunked(torch.autograd.Function):
    """The sum over chunks, with the gradients by the states and by the head's parameters found on the way."""

    @staticmethod
    def forward(
        ctx: Any,
        head: Head,
        chunk: int,
        states: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor,
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        total = states.new_zeros((), dtype=torch.float32)
        by_states, by_parameters = torch.empty_like(states).flatten(0, 1), list[torch.Tensor]()
        places = by_states.split(chunk)
        for place, (part, wanted, counted) in zip(places, _chunks(states, labels, weights, chunk), strict=True):
            with torch.enable_grad():
                part = part.detach().requires_grad_()
                logits = head(part[None])[0]
            # The gradient takes the logits' place: a vocabulary's width is held once, not twice.
            total += loss_with_gradient(logits.detach(), wanted, counted, logits.detach())
            by_part, *rest = torch.autograd.grad(logits, [part, *parameters], logits.detach())
            del logits
            place.copy_(by_part)
            if not by_parameters:
                by_parameters = [found.float() for found in rest]
            else:
                for kept, found in zip(by_parameters, rest, strict=True):
                    kept += found
        ctx.gradients = by_states.view_as(states), *by_parameters
        ctx.dtypes = [parameter.dtype for parameter in parameters]
        return total

    @staticmethod
    def backward(ctx: Any, above: torch.Tensor) -> Any:
        # Taken, not kept: what nobody else holds becomes a parameter's gradient without a copy.
        by_states, *by_parameters = ctx.gradients
        del ctx.gradients
        scaled = [kept.mul_(above).to(dtype) for kept, dtype in zip(by_parameters, ctx.dtypes, strict=True)]
        return None, None, by_states.mul_(above), None, None, *scaled


def _loss(head: Head, part: torch.Tensor, wanted: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    return summed_cross_entropy(head(part[None])[0], wanted, counted)


def _chunks(
    states: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, chunk: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield states, labels and weights of so many positions at a time; a label that does not count is any token."""
    parts = (tensor.split(chunk) for tensor in (states.flatten(0, 1), labels.flatten().clamp(min=0), weights.flatten()))
    return zip(*parts, strict=True)


def _leaves(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the parameters that a tensor was computed from."""
    found: dict[int, torch.Tensor] = {}
    seen, stack = set[Any](), [tensor.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found[id(node.variable)] = node.variable
        stack.extend(following for following, _ in node.next_functions)
    return list(found.values())


@contextmanager
def _answering(module: torch.nn.Module, output: Any) -> Iterator[None]:
    """Let a module return an output without running, for as long as this lasts."""
    before = module.__dict__.get("forward")
    module.forward = lambda *_, **__: output  # type: ignore[method-assign]
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before  # type: ignore[method-assign]
