"""Between a plain body and its plain head: a small part that makes what the head reads out of the layers' states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_outputs import ModelOutput


@dataclass(frozen=True)
class Reads:
    """Which layers' states are read, and how they are laid together; there is nothing to learn in it."""

    last: int = 0
    """Layers counted from the top; 0 is the network's own output."""
    mean: bool = False
    """Their mean, in place of one beside the other."""
    normalise: bool = False
    """Every layer's states are brought to mean 0 and variance 1 first."""
    pool: bool = False
    """The first position, which heads of BERT's kind read, holds the mean of the text's positions."""

    def __call__(self, output: ModelOutput) -> torch.Tensor:
        """Return states of shape (rows, positions, width × layers), the lowest layer's first, or their mean."""
        if not self.last:
            return output[0]  # type: ignore[no-any-return]
        # An encoder-decoder's head reads the decoder.
        every: Any = output.get("hidden_states") or output["decoder_hidden_states"]
        layers = [F.layer_norm(s, s.shape[-1:]) if self.normalise else s for s in every[-self.last :]]
        return torch.stack(layers).mean(0) if self.mean else torch.cat(layers, dim=-1)

    def first(self, states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Put the mean of a text's states at its first position, where that is asked for."""
        if not self.pool:
            return states
        real = torch.ones(states.shape[:2]) if mask is None else mask
        shares = (real / real.sum(1, keepdim=True)).to(states)
        return torch.cat([(states * shares[..., None]).sum(1, keepdim=True), states[:, 1:]], dim=1)


class ScalarMix(nn.Module):
    """ELMo's mixture: γ times a mean of the layers whose weights, a softmax, are learnt."""

    def __init__(self, layers: int) -> None:
        """Begin with the plain mean."""
        super().__init__()
        self.weights, self.scale = nn.Parameter(torch.zeros(layers)), nn.Parameter(torch.ones(1))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Mix layers that lie side by side."""
        shares = self.weights.softmax(0)
        return self.scale * (states.unflatten(-1, (len(shares), -1)) * shares[:, None]).sum(-2)


class Projection(nn.Linear):
    """Layers side by side, brought to the width that every head reads; for a linear head no loss of generality."""

    def __init__(self, layers: int, width: int) -> None:
        """Begin with the mean of the layers."""
        super().__init__(layers * width, width)
        with torch.no_grad():
            self.weight.copy_(torch.eye(width).repeat(1, layers) / layers)
            self.bias.zero_()


class Perceptron(nn.Module):
    """A hidden layer beside the states, added to them."""

    def __init__(self, width: int, hidden: int) -> None:
        """Begin with the states as they are."""
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(width), nn.Linear(width, hidden), nn.Linear(hidden, width)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Add what the hidden layer makes of each position."""
        return states + self.outer(F.gelu(self.inner(self.norm(states))))  # type: ignore[no-any-return]


def dressed(body: Any, kind: type[ModelOutput], states: torch.Tensor) -> ModelOutput:
    """Return an output of a body's own kind around new states, and what its pooler makes of them where it has one.

    A head may ask for any field of that kind, were it but to find it empty (XLNet's `mems`).
    """
    pooler = getattr(body, "pooler", None)
    if pooler is None:
        return kind(last_hidden_state=states)
    alone = isinstance(pooler, nn.Linear)  # ALBERT's
    pooled = body.pooler_activation(pooler(states[:, 0])) if alone else pooler(states)
    return kind(last_hidden_state=states, pooler_output=pooled)


def build_top(kind: str, layers: int, width: int, hidden: int = 0) -> nn.Module:
    """Make a part by its name, as it begins; `layers` and `width` are those of the states that it reads."""
    match kind:
        case "mix":
            return ScalarMix(layers)
        case "projection":
            return Projection(layers, width)
        case "perceptron":
            return Perceptron(width, hidden)
        case "none":
            return nn.Identity()
    raise ValueError(f"no part {kind!r}")
