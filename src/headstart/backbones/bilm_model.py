"""ELMo's network as a transformers model: forward and backward LSTM layers and a learned mixture of the layers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, initialization
from transformers.modeling_outputs import BaseModelOutput

from headstart.backbones.characters import CharacterInput, Highway
from headstart.core.layer_mix import mix_layers

# torch prints this once per process, and users cannot change it.
warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")


class BiLMConfig(PreTrainedConfig):
    """The sizes of a biLM; the defaults are ELMo's, with subwords instead of characters."""

    model_type = "headstart_bilm"

    vocab_size: int = 30522
    num_hidden_layers: int = 2
    hidden_size: int = 1024
    """Width of a hidden state, half of it for each direction."""
    cell_size: int = 4096
    """LSTM cells of a layer in each direction."""
    input: str = "subword"
    """The input representation: "subword" (token embeddings) or "characters" (convolutions over the spelling)."""
    max_characters: int = 50
    dropout: float = 0.1
    weight_drop: float = 0.0
    """Dropout of the hidden-to-hidden weights in training, one mask for each forward pass."""
    classifier_pooling: str = "mean"
    """What a classifier of texts reads: "mean", or "concat" (last state, maximum and mean)."""
    tie_word_embeddings: bool = True
    """Whether input and output embeddings are tied; must be False with characters, which have no input embeddings."""


class BiLMPreTrainedModel(PreTrainedModel):
    """Base class of the biLM models: their names in transformers and the initialization of their weights."""

    config: BiLMConfig
    config_class = BiLMConfig
    base_model_prefix = "bilm"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize as bilm-tf does: layers preserve the scale of their input, and the forget gate's bias is 1."""
        if isinstance(module, nn.LSTM):
            super()._init_weights(module)
            bias = module.get_parameter("bias_ih_l0")
            forget = torch.zeros_like(bias)
            forget[module.hidden_size : 2 * module.hidden_size] = 1.0
            initialization.copy_(bias, forget)
        elif isinstance(module, nn.Linear | nn.Conv1d | nn.Embedding):
            initialization.normal_(module.weight, std=1 / math.sqrt(module.weight[0].numel()))
            if not isinstance(module, nn.Embedding) and module.bias is not None:
                initialization.zeros_(module.bias)
        elif isinstance(module, Highway):
            initialization.constant_(module.keep.bias, 2.0)
        elif isinstance(module, ScalarMix):
            initialization.zeros_(module.weights)
            initialization.ones_(module.scale)


class BiLMLayer(nn.Module):
    """One LSTM with a projection in each direction; the directions do not share states."""

    def __init__(self, config: BiLMConfig, residual: bool) -> None:
        """Create both LSTMs; `residual` adds the input to the output, as in ELMo's layers after the first."""
        super().__init__()
        width = config.hidden_size // 2
        self.ahead, self.back = (nn.LSTM(width, config.cell_size, proj_size=width, batch_first=True) for _ in range(2))
        self.dropout, self.residual = nn.Dropout(config.dropout), residual
        self.weight_drop = config.weight_drop

    def forward(self, ahead: torch.Tensor, back: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states of both directions, (rows, positions, width) each, in their own reading order."""
        return self._run(self.ahead, ahead), self._run(self.back, back)

    def _run(self, lstm: nn.LSTM, states: torch.Tensor) -> torch.Tensor:
        # Float32 input keeps the memory cells in float32 under autocast; the matrix products are bf16 anyway.
        inputs = self.dropout(states).float()
        drops = self.training and self.weight_drop > 0
        output: torch.Tensor = (self._run_with_weight_drop(lstm, inputs) if drops else lstm(inputs))[0]
        return output + states if self.residual else output

    def _run_with_weight_drop(self, lstm: nn.LSTM, inputs: torch.Tensor) -> Any:
        """Run an LSTM with a part of its hidden-to-hidden weights at zero (Merity et al. 2018, DropConnect)."""
        # The list that torch's LSTM passes to its kernel; the parameters themselves stay whole.
        whole: list[Any] = lstm._flat_weights
        names = lstm._flat_weights_names
        lstm._flat_weights = [
            F.dropout(weight, self.weight_drop) if name.startswith("weight_hh") else weight
            for name, weight in zip(names, whole, strict=True)
        ]
        try:
            return lstm(inputs)
        finally:
            lstm._flat_weights = whole


class ScalarMix(nn.Module):
    """ELMo's representation of a token: γ times the weighted mean of all layers, with weights learned on the task."""

    def __init__(self, layers: int) -> None:
        """Start with equal weights and a scale of 1."""
        super().__init__()
        self.weights, self.scale = nn.Parameter(torch.zeros(layers)), nn.Parameter(torch.ones(1))

    def layer_weights(self) -> torch.Tensor:
        """Return the weight of each layer, (layers,), starting with the token embeddings; they sum to one."""
        return self.weights.softmax(0)

    def forward(self, layers: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the mixture of the layers' hidden states."""
        return mix_layers(layers, self.weights, self.scale)


class BiLMModel(BiLMPreTrainedModel):
    """The biLM without a head; its last hidden state is the mixture of all layers, or without `mixes` the top layer."""

    def __init__(self, config: BiLMConfig, mixes: bool = True) -> None:
        """Create input embeddings, layers and mixture."""
        super().__init__(config)
        width = config.hidden_size // 2
        if config.input == "characters":
            self.tokens: nn.Module = CharacterInput(config.vocab_size, config.max_characters, width)
        else:
            self.tokens = nn.Embedding(config.vocab_size, width)
        self.layers = nn.ModuleList(BiLMLayer(config, residual=index > 0) for index in range(config.num_hidden_layers))
        self.mix = ScalarMix(config.num_hidden_layers + 1) if mixes else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embeddings, or the character input."""
        return self.tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embeddings."""
        self.tokens = value

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        **_: Any,
    ) -> BaseModelOutput:
        """Return hidden states of shape (rows, positions, hidden): the forward direction, then the backward one."""
        orders = _reading_orders(input_ids, attention_mask)
        tokens = self.tokens(input_ids)
        if self.config.input != "characters":
            # Embeddings that are tied to the output layer are small, so they are scaled to a norm of √width as input.
            tokens = tokens * math.sqrt(tokens.shape[-1])
        forward, backward = (torch.take_along_dim(tokens, order, dim=1) for order in orders)
        restore_forward, restore_backward = (order.argsort(1) for order in orders)
        layers = [torch.cat([tokens, tokens], dim=-1)]
        for layer in self.layers:
            forward, backward = layer(forward, backward)
            halves = (
                torch.take_along_dim(forward, restore_forward, dim=1),
                torch.take_along_dim(backward, restore_backward, dim=1),
            )
            layers.append(torch.cat(halves, dim=-1))
        last: Any = layers[-1] if self.mix is None else self.mix(layers)
        hidden_states: Any = tuple(layers) if output_hidden_states else None
        return BaseModelOutput(last_hidden_state=last, hidden_states=hidden_states)


def _reading_orders(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the positions from left to right and from right to left, padding last; shape (rows, positions, 1) each."""
    length = input_ids.shape[1]
    index = torch.arange(length, device=input_ids.device).expand_as(input_ids)
    padding = torch.zeros_like(input_ids) if attention_mask is None else (attention_mask == 0).long() * length
    return (index + padding).argsort(1).unsqueeze(-1), (padding - index).argsort(1).unsqueeze(-1)
