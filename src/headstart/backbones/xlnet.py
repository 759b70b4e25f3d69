"""XLNet: one Transformer with two streams of attention, for prediction in any order."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator
from transformers import PreTrainedModel, XLNetConfig

from headstart.backbones.sizes import SIZES, from_config, require_room, require_size
from headstart.core.config import Section
from headstart.core.contracts import Vocabulary


class XLNet:
    """Two-stream Transformer with relative positions: what a token is, and what is asked of its place."""

    paper: ClassVar[str] = "Yang et al. 2019, XLNet"

    class Config(Section):
        """How large."""

        family: Literal["xlnet"] = "xlnet"
        size: str = Field("mini", description=f"one of {', '.join(SIZES)}")
        dropout: float = Field(0.1, ge=0, lt=1, description="XLNet used 0.1; 0 suits a single pass over the text")
        max_length: int = Field(512, ge=8, le=65536, description="longest row; positions are relative and set no limit")

        _known_size = field_validator("size")(require_size)

    def __init__(self, config: Config) -> None:
        """Remember the section of the recipe."""
        self.config = config

    def build(
        self, vocabulary: Vocabulary, row_length: int, auto_class: str, scale: float = 1.0, **changes: Any
    ) -> PreTrainedModel:
        """Return a freshly initialised model for this vocabulary, with the head of a transformers class."""
        require_room(row_length, self.config.max_length)
        size = SIZES[self.config.size].scaled(scale)
        config = XLNetConfig(
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
        return from_config(config, vocabulary, auto_class, changes)
