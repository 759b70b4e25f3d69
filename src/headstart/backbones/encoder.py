"""Bidirectional encoders: six layouts of transformers, with named sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from headstart.backbones.sizes import SIZES, Size, SizedBackbone, SizeName, SizeSettings
from headstart.core.data import Vocabulary
from headstart.core.lazy import transformers

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


class Encoder(SizedBackbone):
    """Bidirectional encoder (bert, roberta, modernbert, deberta-v2, albert, electra) for masked prediction."""

    paper: ClassVar[str] = "Devlin et al. 2019, BERT; Warner et al. 2024, ModernBERT"

    class Config(SizeSettings):
        """The layout and its size."""

        family: Literal["encoder"] = "encoder"
        kind: Literal["bert", "roberta", "modernbert", "deberta-v2", "albert", "electra"] = Field(
            "modernbert", description="layout of the network; bert is the oldest, modernbert the newest"
        )
        size: SizeName = Field("mini", description=f"one of {', '.join(SIZES)}")
        dropout: float = Field(0.1, ge=0, lt=1, description="BERT used 0.1; use 0 for a single pass over the text")
        max_length: int = Field(512, ge=8, le=65536, description="longest row that the model can read")

    def layout(self, size: Size, vocabulary: Vocabulary) -> PreTrainedConfig:
        """Return the config of the selected kind."""
        return _CONFIGS[self.config.kind](size, self.config, vocabulary)


def _common(size: Size, config: Encoder.Config, vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary.size,
        "num_hidden_layers": size.layers,
        "hidden_size": size.hidden,
        "num_attention_heads": size.heads,
        "intermediate_size": 4 * size.hidden,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
        "max_position_embeddings": config.max_length,
    }


def _bert(size: Size, config: Encoder.Config, vocabulary: Vocabulary) -> PreTrainedConfig:
    return transformers.BertConfig(**_common(size, config, vocabulary))


def _roberta(size: Size, config: Encoder.Config, vocabulary: Vocabulary) -> PreTrainedConfig:
    # RoBERTa's positions start at pad + 1. Headstart's tokenizers return segment ids for pairs, so there are two types.
    common = _common(size, config, vocabulary)
    common["max_position_embeddings"] += vocabulary.pad + 1
    return transformers.RobertaConfig(**common, pad_token_id=vocabulary.pad, type_vocab_size=2)


def _modernbert(size: Size, config: Encoder.Config, vocabulary: Vocabulary) -> PreTrainedConfig:
    return transformers.ModernBertConfig(
        vocab_size=vocabulary.size,
        num_hidden_layers=size.layers,
        hidden_size=size.hidden,
        num_attention_heads=size.heads,
        intermediate_size=size.gated_width,
        embedding_dropout=config.dropout,
        mlp_dropout=config.dropout,
        attention_dropout=0.0,
        classifier_dropout=config.dropout,
        max_position_embeddings=config.max_length,
        # Masked LM does not train [CLS] specifically, so the mean over positions is the better representation.
        classifier_pooling="mean",
        # Local attention saves nothing on short rows, so every layer attends to the whole row.
        layer_types=["full_attention"] * size.layers if config.max_length <= 512 else None,
        pad_token_id=vocabulary.pad,
        bos_token_id=vocabulary.cls,
        eos_token_id=vocabulary.sep,
        cls_token_id=vocabulary.cls,
        sep_token_id=vocabulary.sep,
    )


def _deberta(size: Size, config: Encoder.Config, vocabulary: Vocabulary) -> PreTrainedConfig:
    # Relative positions as in DeBERTa-v3; the defaults of the config disable them.
    relative: dict[str, Any] = {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": min(256, config.max_length // 2),
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pooler_hidden_size": size.hidden,
    }
    return transformers.DebertaV2Config(**_common(size, config, vocabulary), **relative, type_vocab_size=0)


def _albert(size: Size, config: Encoder.Config, vocabulary: Vocabulary) -> PreTrainedConfig:
    return transformers.AlbertConfig(
        **_common(size, config, vocabulary), embedding_size=min(128, size.hidden), inner_group_num=1
    )


def _electra(size: Size, config: Encoder.Config, vocabulary: Vocabulary) -> PreTrainedConfig:
    return transformers.ElectraConfig(**_common(size, config, vocabulary), embedding_size=min(size.hidden, 768))


_CONFIGS: dict[str, Callable[[Size, Encoder.Config, Vocabulary], PreTrainedConfig]] = {
    "bert": _bert,
    "roberta": _roberta,
    "modernbert": _modernbert,
    "deberta-v2": _deberta,
    "albert": _albert,
    "electra": _electra,
}
