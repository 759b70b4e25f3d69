"""The biLM: ELMo's two LSTM language models, by named size.

Importing this module tells transformers' auto classes of the network, whose type is "headstart_bilm", and torch's
counter how many operations its layers take on a GPU. Stages import it when a folder holds one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch.utils.flop_counter import flop_registry, register_flop_formula
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from headstart.backbones.bilm_heads import (
    BiLMForPreTraining,
    BiLMForSequenceClassification,
    BiLMForTokenClassification,
)
from headstart.backbones.bilm_model import BiLMConfig, BiLMModel
from headstart.backbones.characters import CharacterInput, character_table
from headstart.backbones.sizes import SIZES, Size, SizedBackbone, SizeName
from headstart.core.config import Section
from headstart.core.data import Vocabulary
from headstart.core.errors import ArtifactError


class BiLM(SizedBackbone):
    """Two LSTM language models, from the left and from the right, and a learned mixture of their layers.

    A named size gives layers and width; the width is that of both directions together, and there are no heads.
    """

    paper: ClassVar[str] = "Peters et al. 2018, ELMo; Jozefowicz et al. 2016"

    class Config(Section):
        """What is read, how large."""

        family: Literal["bilm"] = "bilm"
        input: Literal["subword", "characters"] = Field(
            "subword", description="a token's vector is its own, or made of its spelling by a convolution (ELMo)"
        )
        size: SizeName = Field("mini", description=f"one of {', '.join(SIZES)}")
        cells: int = Field(
            4,
            ge=1,
            le=32,
            description="memory cells for each unit of a state; ELMo had 8, 4 is near a Transformer's size",
        )
        dropout: float = Field(0.1, ge=0, lt=1, description="ELMo used 0.1; 0 suits a single pass over the text")
        max_length: int = Field(512, ge=8, le=65536, description="longest row; an LSTM itself sets no limit")

    def layout(self, size: Size, vocabulary: Vocabulary) -> PreTrainedConfig:
        """Return the biLM's config."""
        table = self._spelling(vocabulary)
        return BiLMConfig(
            vocab_size=vocabulary.size,
            num_hidden_layers=size.layers,
            hidden_size=size.hidden,
            cell_size=self.config.cells * size.hidden // 2,
            input=self.config.input,
            max_characters=0 if table is None else table.shape[1],
            dropout=self.config.dropout,
            tie_word_embeddings=table is None,
        )

    def build(
        self, vocabulary: Vocabulary, seq_length: int, auto_class: str, scale: float = 1.0, **changes: Any
    ) -> PreTrainedModel:
        """Return a freshly initialised model that knows how its tokens are spelt, where it reads them so."""
        model = super().build(vocabulary, seq_length, auto_class, scale, **changes)
        table = self._spelling(vocabulary)
        if table is not None:
            for module in model.modules():
                if isinstance(module, CharacterInput):
                    module.get_buffer("table").copy_(table)
        return model

    def _spelling(self, vocabulary: Vocabulary) -> torch.Tensor | None:
        """Return the table of characters where they are what is read."""
        if self.config.input == "subword":
            return None
        if len(vocabulary.tokens) != vocabulary.size:
            raise ArtifactError(
                f"the vocabulary of {vocabulary.size} ids holds {len(vocabulary.tokens)} tokens",
                allowed="backbone.input: characters needs the spelling of every id",
                do="Make the vocabulary with core.vocabulary.vocabulary_of, or set backbone.input to subword",
            )
        return character_table(vocabulary.tokens)


def rnn_flops(inputs: Sequence[int], weights: Sequence[Sequence[int]], *_: Any, **__: Any) -> int:
    """Count cuDNN's fused LSTM: each token meets each matrix once. On a processor torch counts the products itself."""
    return 2 * math.prod(inputs[:-1]) * sum(math.prod(shape) for shape in weights if len(shape) > 1)


def rnn_backward_flops(inputs: Sequence[int], weights: Sequence[Sequence[int]], *_: Any, **__: Any) -> int:
    """Count the way back: once for the gradient by the states and once for that by the weights."""
    return 2 * rnn_flops(inputs, weights)


for operation, formula in (
    (torch.ops.aten._cudnn_rnn, rnn_flops),
    (torch.ops.aten._cudnn_rnn_backward, rnn_backward_flops),
):
    if operation not in flop_registry:
        register_flop_formula(operation)(formula)

AutoConfig.register(BiLMConfig.model_type, BiLMConfig)
AutoModel.register(BiLMConfig, BiLMModel)
AutoModelForPreTraining.register(BiLMConfig, BiLMForPreTraining)
AutoModelForSequenceClassification.register(BiLMConfig, BiLMForSequenceClassification)
AutoModelForTokenClassification.register(BiLMConfig, BiLMForTokenClassification)
