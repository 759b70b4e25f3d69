"""XLNet: one Transformer with two streams of attention, for prediction in any order."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from transformers import PreTrainedConfig, XLNetConfig

from headstart.backbones.sizes import SIZES, Size, SizedBackbone, SizeName
from headstart.core.config import Section
from headstart.core.data import Vocabulary


class XLNet(SizedBackbone):
    """Two-stream Transformer with relative positions: what a token is, and what is asked of its place."""

    paper: ClassVar[str] = "Yang et al. 2019, XLNet"

    class Config(Section):
        """How large."""

        family: Literal["xlnet"] = "xlnet"
        size: SizeName = Field("mini", description=f"one of {', '.join(SIZES)}")
        dropout: float = Field(0.1, ge=0, lt=1, description="XLNet used 0.1; 0 suits a single pass over the text")
        max_length: int = Field(512, ge=8, le=65536, description="longest row; positions are relative and set no limit")

    def layout(self, size: Size, vocabulary: Vocabulary) -> PreTrainedConfig:
        """Return XLNet's config."""
        return XLNetConfig(
            vocab_size=vocabulary.size,
            n_layer=size.layers,
            d_model=size.hidden,
            n_head=size.heads,
            d_inner=4 * size.hidden,
            dropout=self.config.dropout,
            # Rows are shuffled, so none is the continuation of the one before and there is nothing to remember.
            mem_len=None,
            use_mems_eval=False,
            # XLNet's tokenizer puts [CLS] last, ours puts it first. The mean would be taken over padding too.
            summary_type="first",
            summary_last_dropout=self.config.dropout,
        )
