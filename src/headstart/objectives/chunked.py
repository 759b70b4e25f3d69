"""The base of objectives that generate text: states and head are run apart, so that the loss can be chunked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from headstart.core.data import Batch
from headstart.core.lazy import torch, transformers
from headstart.objectives.base import BaseObjective

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class TextObjective(BaseObjective):
    """Base class of objectives that predict each token from those before it; the loss is chunked.

    A batch contains `input_ids`, `labels` and `weights`. The labels of a decoder are its input, each predicted by the
    previous position. The labels of an encoder-decoder are the decoder's output; its decoder input is shifted right.
    """

    config: Any
    """A section whose field `chunk` is the number of positions whose logits are in memory at a time."""

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy in nats, summed over the predicted positions."""
        from headstart.objectives.chunked_loss import chunked_loss

        states, labels, weights = self.predictions(model, batch)
        return chunked_loss(partial(head_logits, self.network_of(model)), states, labels, weights, self.config.chunk)

    def measure(self, model: Any, batch: Batch) -> dict[str, float]:
        """Return loss in nats and correct predictions, summed over the predicted positions."""
        from headstart.objectives.chunked_loss import split_chunks
        from headstart.objectives.cross_entropy import summed_cross_entropy

        loss = correct = 0.0
        with torch.no_grad():
            states, labels, weights = self.predictions(model, batch)
            for chunk_states, chunk_labels, chunk_weights in split_chunks(states, labels, weights, self.config.chunk):
                logits = head_logits(self.network_of(model), chunk_states[None])[0]
                loss += float(summed_cross_entropy(logits, chunk_labels, chunk_weights))
                correct += float(((logits.argmax(-1) == chunk_labels) * chunk_weights).sum())
        return {"loss": loss, "accuracy": correct}

    def predictions(self, model: PreTrainedModel, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Run the network without its head and return the predicting states with their labels and weights."""
        return predictions(model, batch)

    def network_of(self, model: Any) -> PreTrainedModel:
        """Return the network whose head predicts the tokens, for modules that consist of several parts."""
        return cast("PreTrainedModel", model)

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
    outputs = transformers.modeling_outputs
    # OPT and BART's decoder alone do not call their body but the decoder in it.
    body: torch.nn.Module = getattr(model.base_model, "decoder", model.base_model)
    inputs: dict[str, Any] = {"inputs_embeds": states}
    if model.config.is_encoder_decoder:
        inputs = {"decoder_inputs_embeds": states, "encoder_outputs": outputs.BaseModelOutput(cast(Any, states))}
    with _fixed_output(body, outputs.BaseModelOutputWithPastAndCrossAttentions(cast(Any, states))):
        logits: torch.Tensor = model(**inputs, use_cache=False).logits
    return logits


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
