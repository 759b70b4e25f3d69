"""Left-to-right decoders: three layouts of transformers, with named sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from headstart.backbones.sizes import SIZES, Size, SizedBackbone, SizeName, SizeSettings
from headstart.core.data import Vocabulary
from headstart.core.lazy import transformers

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


class Decoder(SizedBackbone):
    """Left-to-right decoder (gpt2, llama, modernbert-decoder) for next-token prediction and generation."""

    paper: ClassVar[str] = "Radford et al. 2019, GPT-2; Touvron et al. 2023, LLaMA; Weller et al. 2025, Ettin"

    class Config(SizeSettings):
        """The layout and its size."""

        family: Literal["decoder"] = "decoder"
        kind: Literal["gpt2", "llama", "modernbert-decoder"] = Field(
            "modernbert-decoder", description="layout of the network; modernbert-decoder is the causal modernbert"
        )
        size: SizeName = Field("mini", description=f"one of {', '.join(SIZES)}")
        dropout: float = Field(
            0.1,
            ge=0,
            lt=1,
            description="GPT used 0.1; use 0 for a single pass over the text; in llama it applies to attention only",
        )
        max_length: int = Field(512, ge=8, le=65536, description="longest row that the model can read")

    def layout(self, size: Size, vocabulary: Vocabulary) -> PreTrainedConfig:
        """Return the config of the selected kind."""
        config = _CONFIGS[self.config.kind](size, self.config)
        config.vocab_size = vocabulary.size
        return config


def _gpt2(size: Size, config: Decoder.Config) -> PreTrainedConfig:
    return transformers.GPT2Config(
        n_layer=size.layers,
        n_embd=size.hidden,
        n_head=size.heads,
        n_inner=4 * size.hidden,
        n_positions=config.max_length,
        resid_pdrop=config.dropout,
        embd_pdrop=config.dropout,
        attn_pdrop=config.dropout,
    )


def _llama(size: Size, config: Decoder.Config) -> PreTrainedConfig:
    return transformers.LlamaConfig(
        num_hidden_layers=size.layers,
        hidden_size=size.hidden,
        num_attention_heads=size.heads,
        intermediate_size=size.gated_width,
        max_position_embeddings=config.max_length,
        attention_dropout=config.dropout,
        # At these sizes a separate output matrix would have more parameters than all layers together.
        tie_word_embeddings=True,
    )


def _modernbert(size: Size, config: Decoder.Config) -> PreTrainedConfig:
    return transformers.ModernBertDecoderConfig(
        num_hidden_layers=size.layers,
        hidden_size=size.hidden,
        num_attention_heads=size.heads,
        intermediate_size=size.gated_width,
        max_position_embeddings=config.max_length,
        embedding_dropout=config.dropout,
        mlp_dropout=config.dropout,
        attention_dropout=0.0,
        classifier_dropout=config.dropout,
        # Local attention saves nothing on short rows, so every layer attends to all previous tokens.
        layer_types=["full_attention"] * size.layers if config.max_length <= 512 else None,
    )


_CONFIGS: dict[str, Callable[[Size, Decoder.Config], PreTrainedConfig]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "modernbert-decoder": _modernbert,
}
