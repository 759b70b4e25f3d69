"""XLNet: a Transformer with two-stream attention, for prediction in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from headstart.backbones.sizes import SIZES, Size, SizedBackbone, SizeName, SizeSettings
from headstart.core.data import Vocabulary
from headstart.core.lazy import transformers

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


class XLNet(SizedBackbone):
    """Transformer with relative positions and two-stream attention: a content stream and a query stream (XLNet)."""

    paper: ClassVar[str] = "Yang et al. 2019, XLNet"

    class Config(SizeSettings):
        """The size."""

        family: Literal["xlnet"] = "xlnet"
        size: SizeName = Field("mini", description=f"one of {', '.join(SIZES)}")
        dropout: float = Field(0.1, ge=0, lt=1, description="XLNet used 0.1; use 0 for a single pass over the text")
        max_length: int = Field(512, ge=8, le=65536, description="longest row; relative positions have no limit")

    def layout(self, size: Size, vocabulary: Vocabulary) -> PreTrainedConfig:
        """Return XLNet's config."""
        return transformers.XLNetConfig(
            vocab_size=vocabulary.size,
            n_layer=size.layers,
            d_model=size.hidden,
            n_head=size.heads,
            d_inner=4 * size.hidden,
            dropout=self.config.dropout,
            # Rows are shuffled, so no row continues the previous one and a memory would be useless.
            mem_len=None,
            use_mems_eval=False,
            # XLNet's tokenizer puts [CLS] last, Headstart's tokenizers first. The mean would include padding.
            summary_type="first",
            summary_last_dropout=self.config.dropout,
        )
