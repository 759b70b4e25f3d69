"""Sizes by name and by numbers, and the base class of the families that have them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from headstart.core.config import Section
from headstart.core.data import Vocabulary
from headstart.core.errors import RecipeError
from headstart.core.lazy import transformers

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


class Size(NamedTuple):
    """The size of a network: layers, hidden size and attention heads."""

    layers: int
    hidden: int
    heads: int

    def scaled(self, factor: float) -> Size:
        """Return a size of the same depth with a scaled width, rounded to whole attention heads of the same width."""
        width = self.hidden // self.heads
        heads = max(1, round(self.heads * factor))
        return Size(self.layers, heads * width, heads)

    @property
    def gated_width(self) -> int:
        """Return the width of a gated feed-forward whose three matrices have the parameters of BERT's two matrices."""
        return max(64, round(self.hidden * 8 / 3 / 64) * 64)


SIZES: dict[str, Size] = {
    "tiny": Size(2, 128, 2),
    "mini": Size(4, 256, 4),
    "small": Size(4, 512, 8),
    "medium": Size(8, 512, 8),
    "base": Size(12, 768, 12),
    "large": Size(24, 1024, 16),
    # The six rows of BERT's size ablation (Devlin et al. 2019, table 6): #L-#H-#A.
    "3-768-12": Size(3, 768, 12),
    "6-768-3": Size(6, 768, 3),
    "6-768-12": Size(6, 768, 12),
    "12-768-12": Size(12, 768, 12),
    "12-1024-16": Size(12, 1024, 16),
    "24-1024-16": Size(24, 1024, 16),
}
"""Named sizes: tiny to medium are from Turc et al. 2019, base and large from BERT."""
_HEAD_WIDTH = 64
"""Units per attention head, in all of Turc et al.'s sizes and in BERT's."""


def _known(value: str) -> str:
    if value not in SIZES:
        raise ValueError(f"it must be one of {', '.join(SIZES)}.")
    return value


SizeName = Annotated[str, AfterValidator(_known)]
"""The type of a config field that is the name of a size."""


class SizeSettings(Section):
    """Numbers that replace those of the named size; a subclass has the field `size`."""

    newer: ClassVar[tuple[str, ...]] = ("layers", "hidden", "heads")

    layers: int | None = Field(None, ge=1, le=256, description="number of layers, instead of that of `size`")
    hidden: int | None = Field(None, ge=8, le=65536, description="hidden size, instead of that of `size`")
    heads: int | None = Field(
        None, ge=1, le=1024, description="attention heads; default: those of `size`, or with `hidden` one per 64 units"
    )

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        size = self.dimensions()
        if size.hidden % size.heads:
            raise ValueError(
                f"hidden is {size.hidden} and heads is {size.heads}: hidden must be a multiple of heads. "
                f"Choose heads {', '.join(str(n) for n in range(1, 33) if size.hidden % n == 0)}, or another hidden."
            )
        return self

    def dimensions(self) -> Size:
        """Return the size: the numbers that are set, and those of the named size otherwise."""
        named = SIZES[getattr(self, "size")]  # noqa: B009 - a field of the subclasses
        hidden = self.hidden or named.hidden
        heads = self.heads or (named.heads if self.hidden is None else max(1, hidden // _HEAD_WIDTH))
        return Size(self.layers or named.layers, hidden, heads)


class SizedBackbone(ABC):
    """Base class of families with sizes; a subclass implements `layout`."""

    config: Any
    """The section of the recipe: `SizeSettings` with `max_length`, the longest row that the model can read."""

    def __init__(self, config: Any) -> None:
        """Store the section of the recipe."""
        self.config = config

    @abstractmethod
    def layout(self, size: Size, vocabulary: Vocabulary) -> PreTrainedConfig:
        """Return the transformers config of a network of this size for this vocabulary."""

    def build(
        self, vocabulary: Vocabulary, seq_length: int, auto_class: str, scale: float = 1.0, **changes: Any
    ) -> PreTrainedModel:
        """Return a randomly initialized model of the transformers class `auto_class` for this vocabulary."""
        if seq_length > self.config.max_length:
            raise RecipeError(
                f"`training.seq_length` is {seq_length}, but `backbone.max_length` is {self.config.max_length}",
                do="Lower `training.seq_length` or raise `backbone.max_length`",
            )
        config = self.layout(self.config.dimensions().scaled(scale), vocabulary)
        config.pad_token_id, config.cls_token_id, config.sep_token_id = vocabulary.pad, vocabulary.cls, vocabulary.sep
        config.bos_token_id, config.eos_token_id = vocabulary.cls, vocabulary.sep
        change(config, changes)
        model: PreTrainedModel = getattr(transformers, auto_class).from_config(config)
        return model


def change(config: PreTrainedConfig, changes: Mapping[str, Any]) -> None:
    """Set fields of a transformers config in place."""
    for name, value in changes.items():
        setattr(config, name, value)
