"""ELMo's network as a model of transformers: an LSTM from each side, layer upon layer, and a mixture of the layers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, initialization
from transformers.modeling_outputs import BaseModelOutput

from headstart.backbones.characters import CharacterInput, Highway

# It says so for each process once, and there is nothing that a user could do about it.
warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")


class BiLMConfig(PreTrainedConfig):
    """Sizes of a biLM; the defaults are those of ELMo's with subwords in place of characters."""

    model_type = "headstart_bilm"

    vocab_size: int = 30522
    num_hidden_layers: int = 2
    hidden_size: int = 1024
    """Width of a state, half of it from either side."""
    cell_size: int = 4096
    """Memory cells of a layer in either direction."""
    input: str = "subword"
    """What a token's vector comes from: "subword", a table of vectors, or "characters", its spelling."""
    max_characters: int = 50
    dropout: float = 0.1
    tie_word_embeddings: bool = True
    """Whether the table of vectors is the output matrix too; with characters there is none."""


class BiLMPreTrainedModel(PreTrainedModel):
    """What all models of the biLM share: their names for transformers and how their weights begin."""

    config: BiLMConfig
    config_class = BiLMConfig
    base_model_prefix = "bilm"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Begin as bilm-tf does: all layers keep the scale of what they read, and cells forget little at first."""
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
    """One LSTM with a projection in either direction; the two never see each other's states."""

    def __init__(self, config: BiLMConfig, residual: bool) -> None:
        """Make the two; `residual` adds a layer's input to its output, as ELMo does from the second on."""
        super().__init__()
        width = config.hidden_size // 2
        self.ahead, self.back = (nn.LSTM(width, config.cell_size, proj_size=width, batch_first=True) for _ in range(2))
        self.dropout, self.residual = nn.Dropout(config.dropout), residual

    def forward(self, ahead: torch.Tensor, back: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Run over states in the order in which either direction meets the tokens."""
        first, second = self._run(self.ahead, ahead), self._run(self.back, back)
        return first, second

    def _run(self, direction: nn.LSTM, states: torch.Tensor) -> torch.Tensor:
        # In float32 the memory cells start, and then stay, in float32 under autocast; the products are bf16 anyway.
        output: torch.Tensor = direction(self.dropout(states).float())[0]
        return output + states if self.residual else output


class ScalarMix(nn.Module):
    """ELMo's representation of a token: γ times the weighted mean of all layers, the weights learnt with the task."""

    def __init__(self, layers: int) -> None:
        """Begin with the plain mean."""
        super().__init__()
        self.weights, self.scale = nn.Parameter(torch.zeros(layers)), nn.Parameter(torch.ones(1))

    def shares(self) -> torch.Tensor:
        """Return the weight of each layer, that of the tokens' own vectors first; they sum to one."""
        return self.weights.softmax(0)

    def forward(self, layers: Sequence[torch.Tensor]) -> torch.Tensor:
        """Mix the layers' states."""
        return self.scale * sum(share * states for share, states in zip(self.shares(), layers, strict=True))


class BiLMModel(BiLMPreTrainedModel):
    """The biLM without a head; its last hidden state is the mixture of all layers, or the top one without `mixes`."""

    def __init__(self, config: BiLMConfig, mixes: bool = True) -> None:
        """Make input, layers and mixture."""
        super().__init__(config)
        width = config.hidden_size // 2
        if config.input == "characters":
            self.tokens: nn.Module = CharacterInput(config.vocab_size, config.max_characters, width)
        else:
            self.tokens = nn.Embedding(config.vocab_size, width)
        self.layers = nn.ModuleList(BiLMLayer(config, residual=place > 0) for place in range(config.num_hidden_layers))
        self.mix = ScalarMix(config.num_hidden_layers + 1) if mixes else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the table of vectors, or what stands in its place."""
        return self.tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Put another table of vectors in place."""
        self.tokens = value

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        **_: Any,
    ) -> BaseModelOutput:
        """Return states of shape (rows, positions, hidden size): what was read from the left, then from the right."""
        ahead, back = _reading_orders(input_ids, attention_mask)
        tokens = self.tokens(input_ids)
        if self.config.input != "characters":
            # Vectors whose products with states are to be logits are short; as input they are of length √width.
            tokens = tokens * math.sqrt(tokens.shape[-1])
        first, second = (torch.take_along_dim(tokens, order, dim=1) for order in (ahead, back))
        ahead, back = ahead.argsort(1), back.argsort(1)
        layers = [torch.cat([tokens, tokens], dim=-1)]
        for layer in self.layers:
            first, second = layer(first, second)
            parts = (torch.take_along_dim(first, ahead, dim=1), torch.take_along_dim(second, back, dim=1))
            layers.append(torch.cat(parts, dim=-1))
        last: Any = layers[-1] if self.mix is None else self.mix(layers)
        every: Any = tuple(layers) if output_hidden_states else None
        return BaseModelOutput(last_hidden_state=last, hidden_states=every)


def _reading_orders(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the positions as met from the left and from the right, padding last; shape (rows, positions, 1)."""
    length = input_ids.shape[1]
    place = torch.arange(length, device=input_ids.device).expand_as(input_ids)
    padding = torch.zeros_like(input_ids) if attention_mask is None else (attention_mask == 0).long() * length
    return (place + padding).argsort(1).unsqueeze(-1), (padding - place).argsort(1).unsqueeze(-1)
