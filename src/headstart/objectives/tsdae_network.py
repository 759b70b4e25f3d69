"""The network of the TSDAE objective: an encoder that is its own decoder, and the cross-attention between the two."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from headstart.core.errors import RecipeError
from headstart.objectives.heads import Head, HeadConfig, load_or_create_head
from headstart.objectives.outputs import LossAndLogits

if TYPE_CHECKING:
    from headstart.objectives.tsdae import TSDAE

_ATTENTION_NAMES = ("attention", "attn", "self_attn")
"""The names that encoders of transformers give to the self-attention of a layer."""
_DROPOUT_NAMES = ("hidden_dropout_prob", "mlp_dropout", "dropout")
"""The names that their configs give to the dropout of a layer's output."""


class VectorAttention(torch.nn.Module):
    """Cross-attention of one layer to a single vector per row.

    A softmax over one position is 1 for every query, so queries and keys have no effect and get no gradient; this layer
    has neither. What remains is the projection of the vector's values, added to every position. The layer norm after it
    exists where the self-attention of the network ends with one (BERT); in a pre-norm network (ModernBERT) the sum
    stays in the residual stream.
    """

    def __init__(self, config: HeadConfig) -> None:
        """Create the projections of values and output, and the layer norm if the config has one."""
        super().__init__()
        self.value = torch.nn.Linear(config.hidden_size, config.hidden_size)
        self.out = torch.nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = torch.nn.Dropout(config.dropout)
        self.norm = torch.nn.LayerNorm(config.hidden_size, config.norm_eps) if config.norm else None

    def forward(self, states: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """Return states (rows, length, hidden) to which the projection of the vectors (rows, hidden) was added."""
        attended = self.out(self.value(vectors)).unsqueeze(1).expand_as(states)
        total: torch.Tensor = states + self.dropout(attended)
        return total if self.norm is None else self.norm(total)


class CrossAttention(Head):
    """The cross-attention of all layers of a decoder; layers that share their self-attention (ALBERT) share it too."""

    def __init__(self, config: HeadConfig) -> None:
        """Create one `VectorAttention` for each self-attention of the network."""
        super().__init__(config)
        self.blocks = torch.nn.ModuleList([VectorAttention(config) for _ in range(config.layers)])
        self.post_init()


class TiedAutoEncoder(torch.nn.Module):
    """A masked-LM network and the cross-attention of its decoder; a call with the collator's output returns the loss.

    Encoder and decoder are the same network, so every weight of one is that of the other.
    """

    def __init__(self, objective: TSDAE, network: PreTrainedModel, cross_attention: CrossAttention) -> None:
        """Store the objective, the network and the cross-attention."""
        super().__init__()
        self.objective, self.network, self.cross_attention = objective, network, cross_attention

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        decoder_input_ids: torch.Tensor,
        labels: torch.Tensor,
    ) -> LossAndLogits:
        """Return the mean loss per token of the original sentences."""
        weights = (labels != -100).float()
        batch = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "decoder_input_ids": decoder_input_ids,
            "labels": labels.clamp(min=0),
            "weights": weights,
        }
        return LossAndLogits(loss=self.objective.loss(self, batch) / weights.sum().clamp(min=1))


class _WithCrossAttention(torch.nn.Module):
    """A self-attention followed by the cross-attention to given vectors."""

    def __init__(self, attention: torch.nn.Module, block: torch.nn.Module, vectors: torch.Tensor) -> None:
        super().__init__()
        self.attention, self.block, self.vectors = attention, block, vectors

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the self-attention with the states after the cross-attention."""
        output = self.attention(*args, **kwargs)
        if isinstance(output, tuple):
            return (self.block(output[0], self.vectors), *output[1:])
        return self.block(output, self.vectors)


@contextmanager
def attending_to(module: TiedAutoEncoder, vectors: torch.Tensor) -> Iterator[None]:
    """Let every layer of the network attend to one vector per row (rows, hidden), within the context.

    The self-attention modules are replaced by wrappers. Hooks would do the same, but a compiled layer does not notice
    hooks that are registered after its first call.
    """
    slots = _attention_slots(module.network)
    originals = [parent.get_submodule(name) for parent, name in slots]
    try:
        for (parent, name), attention, block in zip(slots, originals, module.cross_attention.blocks, strict=True):
            setattr(parent, name, _WithCrossAttention(attention, block, vectors))
        yield
    finally:
        for (parent, name), attention in zip(slots, originals, strict=True):
            setattr(parent, name, attention)


def load_or_create_cross_attention(network: PreTrainedModel) -> CrossAttention:
    """Return the cross-attention saved beside a loaded network, or a new one; raises if no self-attention is found."""
    slots = _attention_slots(network)
    if not slots:
        raise RecipeError(
            f"the objective 'tsdae' found no self-attention in a network of the type {network.config.model_type!r}",
            allowed=f"Its layers must have a module named {', '.join(_ATTENTION_NAMES)}, as BERT and ModernBERT have",
            do="Choose another backbone, or the objective masked_lm",
        )
    parent, name = slots[0]
    norms = [part for part in parent.get_submodule(name).modules() if isinstance(part, torch.nn.LayerNorm)]
    settings: dict[str, Any] = {"norm": True, "norm_eps": norms[0].eps} if norms else {}
    dropout = next((getattr(network.config, key) for key in _DROPOUT_NAMES if hasattr(network.config, key)), 0.0)
    return load_or_create_head(
        network, "cross_attention", CrossAttention, network.config.hidden_size, layers=len(slots), dropout=dropout,
        **settings,
    )  # fmt: skip


def _attention_slots(network: PreTrainedModel) -> list[tuple[torch.nn.Module, str]]:
    """Return the module that contains each self-attention, and its name there; only the outermost of nested ones."""
    body, slots = network.base_model, list[tuple[torch.nn.Module, str]]()
    for path, _ in body.named_modules():
        *ancestors, name = path.split(".")
        if name in _ATTENTION_NAMES and not set(ancestors) & set(_ATTENTION_NAMES):
            slots.append((body.get_submodule(".".join(ancestors)), name))
    return slots
