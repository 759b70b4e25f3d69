"""The biLM: ELMo's two LSTM language models, with named sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from headstart.backbones.sizes import SIZES, Size, SizedBackbone, SizeName, SizeSettings
from headstart.core.data import Vocabulary
from headstart.core.errors import ArtifactError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel


class BiLM(SizedBackbone):
    """Forward and backward LSTM language model with a learned mixture of its layers (ELMo).

    A named size determines the number of layers and the width of both directions together; there are no heads.
    """

    paper: ClassVar[str] = (
        "Peters et al. 2018, ELMo; Jozefowicz et al. 2016; Merity et al. 2018, weight drop; Howard & Ruder 2018, ULMFiT"
    )

    class Config(SizeSettings):
        """The input representation and the size."""

        newer: ClassVar[tuple[str, ...]] = (*SizeSettings.newer, "pooling", "weight_drop")

        family: Literal["bilm"] = "bilm"
        input: Literal["subword", "characters"] = Field(
            "subword", description="subword: token embeddings; characters: convolutions over a token's spelling (ELMo)"
        )
        size: SizeName = Field("mini", description=f"one of {', '.join(SIZES)}")
        cells: int = Field(
            4,
            ge=1,
            le=32,
            description="LSTM cells per hidden unit; ELMo used 8, 4 is close to the size of a Transformer",
        )
        dropout: float = Field(0.1, ge=0, lt=1, description="ELMo used 0.1; use 0 for a single pass over the text")
        weight_drop: float = Field(
            0.0,
            ge=0,
            lt=1,
            description="dropout of the LSTMs' hidden-to-hidden weights (AWD-LSTM); ULMFiT used 0.5",
        )
        pooling: Literal["mean", "concat"] = Field(
            "mean",
            description="what a classifier of texts reads: the mean over the tokens, or the last state, the maximum "
            "and the mean side by side (ULMFiT)",
        )
        max_length: int = Field(512, ge=8, le=65536, description="longest row; an LSTM has no limit itself")

    def layout(self, size: Size, vocabulary: Vocabulary) -> PreTrainedConfig:
        """Return the biLM's config."""
        import headstart.backbones.bilm  # noqa: F401 (registers the networks with transformers)
        from headstart.backbones.bilm_model import BiLMConfig

        table = self._spelling(vocabulary)
        return BiLMConfig(
            vocab_size=vocabulary.size,
            num_hidden_layers=size.layers,
            hidden_size=size.hidden,
            cell_size=self.config.cells * size.hidden // 2,
            input=self.config.input,
            max_characters=0 if table is None else table.shape[1],
            dropout=self.config.dropout,
            weight_drop=self.config.weight_drop,
            classifier_pooling=self.config.pooling,
            tie_word_embeddings=table is None,
        )

    def build(
        self, vocabulary: Vocabulary, seq_length: int, auto_class: str, scale: float = 1.0, **changes: Any
    ) -> PreTrainedModel:
        """Return a randomly initialized model, with the spelling of its tokens if it reads characters."""
        import headstart.backbones.bilm  # noqa: F401 (registers the networks with transformers)
        from headstart.backbones.characters import CharacterInput

        model = super().build(vocabulary, seq_length, auto_class, scale, **changes)
        table = self._spelling(vocabulary)
        if table is not None:
            for module in model.modules():
                if isinstance(module, CharacterInput):
                    module.get_buffer("table").copy_(table)
        return model

    def _spelling(self, vocabulary: Vocabulary) -> torch.Tensor | None:
        """Return the character table, shape (tokens, characters), or None for subword input."""
        from headstart.backbones.characters import character_table

        if self.config.input == "subword":
            return None
        if len(vocabulary.tokens) != vocabulary.size:
            raise ArtifactError(
                f"the vocabulary has {vocabulary.size} ids, but the spelling of {len(vocabulary.tokens)} tokens",
                allowed="`backbone.input: characters` needs the spelling of every id",
                do="Create the vocabulary with core.vocabulary.vocabulary_of, or set `backbone.input` to subword",
            )
        return character_table(vocabulary.tokens)
