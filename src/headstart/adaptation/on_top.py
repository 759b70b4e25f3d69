"""The module between a body and its head: it turns the hidden states of the layers into the head's input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_outputs import ModelOutput

from headstart.core import renames
from headstart.core.layer_mix import mix_layers


@dataclass(frozen=True)
class LayerSelection:
    """Which hidden states are read, and how they are combined; it has no parameters."""

    last: int = 0
    """Number of layers, counted from the top; 0 is the network's output."""
    mean: bool = False
    """Average the layers instead of concatenating them."""
    normalize: bool = False
    """Scale each layer's states to mean 0 and variance 1 first."""
    pool: bool = False
    """Replace the first position, which BERT-like heads read, by the mean of the text's positions."""
    only: bool = False
    """Read the lowest of the layers alone."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LayerSelection:
        """Return the selection that a network's config describes; a field may have its former name."""
        return cls(**renames.upgrade({"adaptation": values})["adaptation"])

    def __call__(self, output: ModelOutput) -> torch.Tensor:
        """Return states of shape (rows, positions, width × layers), the lowest layer first, or their mean."""
        if not self.last:
            return output[0]  # type: ignore[no-any-return]
        # An encoder-decoder's head reads the decoder.
        every: Any = output.get("hidden_states") or output["decoder_hidden_states"]
        selected = every[-self.last :][: 1 if self.only else None]
        layers = [F.layer_norm(s, s.shape[-1:]) if self.normalize else s for s in selected]
        return torch.stack(layers).mean(0) if self.mean else torch.cat(layers, dim=-1)

    def pool_first(self, states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Replace the first position by the mean of the text's states, if `pool` is set."""
        if not self.pool:
            return states
        mask = torch.ones(states.shape[:2]) if mask is None else mask
        weights = (mask / mask.sum(1, keepdim=True)).to(states)
        return torch.cat([(states * weights[..., None]).sum(1, keepdim=True), states[:, 1:]], dim=1)


class LayerMix(nn.Module):
    """ELMo's mixture of concatenated layers: γ times a mean with learned softmax weights."""

    def __init__(self, layers: int) -> None:
        """Start as the plain mean."""
        super().__init__()
        self.weights, self.scale = nn.Parameter(torch.zeros(layers)), nn.Parameter(torch.ones(1))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Mix states of shape (rows, positions, layers × width)."""
        layers = states.float().unflatten(-1, (len(self.weights), -1))
        return mix_layers(layers.unbind(-2), self.weights, self.scale)


def learned_mixture(model: nn.Module) -> dict[str, Any]:
    """Return the learned weights of a network's layers (`weights`, from the embeddings up) and their scale (`gamma`).

    Empty if no mixture is part of the network.
    """
    mixtures = [module for module in model.modules() if type(module).__name__ in ("LayerMix", "ScalarMix")]
    if not mixtures:
        return {}
    weights, scale = (mixtures[0].get_parameter(name).detach().float().cpu() for name in ("weights", "scale"))
    return {"weights": [round(w, 4) for w in weights.softmax(0).tolist()], "gamma": round(float(scale), 4)}


class BiLMMix(nn.Module):
    """A biLM's own layer mixture, applied to concatenated states."""

    def __init__(self, mixture: nn.Module) -> None:
        """Store the biLM's module, whose parameters are trained in place."""
        super().__init__()
        self.mixture = mixture

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Mix the layers."""
        layers = states.unflatten(-1, (self.mixture.get_parameter("weights").numel(), -1))
        return self.mixture(layers.unbind(-2))  # type: ignore[no-any-return]


class Projection(nn.Linear):
    """Projects concatenated layers to the hidden size that heads read; for a linear head, no loss of generality."""

    def __init__(self, layers: int, width: int) -> None:
        """Start as the mean of the layers."""
        super().__init__(layers * width, width)
        with torch.no_grad():
            self.weight.copy_(torch.eye(width).repeat(1, layers) / layers)
            self.bias.zero_()


class Perceptron(nn.Module):
    """A residual MLP with one hidden layer, on each position."""

    def __init__(self, width: int, hidden: int) -> None:
        """Start as the identity."""
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(width), nn.Linear(width, hidden), nn.Linear(hidden, width)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Add the MLP's output to the states."""
        return states + self.outer(F.gelu(self.inner(self.norm(states))))  # type: ignore[no-any-return]


class BiLSTM(nn.Module):
    """A bidirectional LSTM over the positions of each text, above the module that combines the layers."""

    def __init__(self, below: nn.Module, width: int, hidden: int) -> None:
        """Build an LSTM with `hidden` units in each direction; if that is not half of `width`, a projection to it."""
        super().__init__()
        self.below, self.lstm = below, nn.LSTM(width, hidden, batch_first=True, bidirectional=True)
        self.projection = nn.Identity() if 2 * hidden == width else nn.Linear(2 * hidden, width)

    def forward(self, states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return states of the same shape; padding, on either side, is not read, and its states are 0."""
        states = self.below(states)
        mask = torch.ones(states.shape[:2], device=states.device) if mask is None else mask
        # The text of each row first, whatever the side of its padding.
        order = mask.argsort(dim=1, descending=True, stable=True)[..., None]  # (rows, positions, 1)
        aligned = states.gather(1, order.expand_as(states))
        lengths = mask.sum(1).clamp(min=1).long().cpu()
        packed = nn.utils.rnn.pack_padded_sequence(aligned, lengths, batch_first=True, enforce_sorted=False)
        output, _ = nn.utils.rnn.pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=states.shape[1]
        )
        projected: torch.Tensor = self.projection(output)
        return projected.gather(1, order.argsort(dim=1).expand_as(projected)) * mask[..., None]


def apply_top(top: nn.Module, states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Run a module on states; an LSTM reads the attention mask (rows, positions) as well, None for no padding."""
    output: torch.Tensor = top(states, mask) if isinstance(top, BiLSTM) else top(states)
    return output


def output_with_states(body: Any, output_class: type[ModelOutput], states: torch.Tensor) -> ModelOutput:
    """Return a body's output with new states, and the pooler's output for them if the body has a pooler.

    The class must be the body's own, because a head may read any of its fields, even an empty one (XLNet's `mems`).
    """
    pooler = getattr(body, "pooler", None)
    if pooler is None:
        return output_class(last_hidden_state=states)
    activation = getattr(body, "pooler_activation", None)  # ALBERT's pooler is a linear layer
    pooled = pooler(states) if activation is None else activation(pooler(states[:, 0]))
    return output_class(last_hidden_state=states, pooler_output=pooled)


def build_top(kind: str, layers: int, width: int, hidden: int = 0) -> nn.Module:
    """Build a module by its name; `layers` and `width` are those of the states that it reads.

    An LSTM is named after the module below it, as in `mix+bilstm`.
    """
    below, _, above = kind.partition("+")
    if above == "bilstm":
        return BiLSTM(build_top(below, layers, width), width, hidden)
    match kind:
        case "mix":
            return LayerMix(layers)
        case "projection":
            return Projection(layers, width)
        case "perceptron":
            return Perceptron(width, hidden)
        case "none":
            return nn.Identity()
    raise ValueError(f"unknown module {kind!r}")
