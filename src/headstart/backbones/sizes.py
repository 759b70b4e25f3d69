"""Named sizes, and the base class of the families that have them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import AfterValidator

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


def _known(value: str) -> str:
    if value not in SIZES:
        raise ValueError(f"it must be one of {', '.join(SIZES)}.")
    return value


SizeName = Annotated[str, AfterValidator(_known)]
"""The type of a config field that is the name of a size."""


class SizedBackbone(ABC):
    """Base class of families with named sizes; a subclass implements `layout`."""

    config: Any
    """The section of the recipe, with the fields `size` and `max_length` (the longest row that the model can read)."""

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
        config = self.layout(SIZES[self.config.size].scaled(scale), vocabulary)
        config.pad_token_id, config.cls_token_id, config.sep_token_id = vocabulary.pad, vocabulary.cls, vocabulary.sep
        config.bos_token_id, config.eos_token_id = vocabulary.cls, vocabulary.sep
        change(config, changes)
        model: PreTrainedModel = getattr(transformers, auto_class).from_config(config)
        return model


def change(config: PreTrainedConfig, changes: Mapping[str, Any]) -> None:
    """Set fields of a transformers config in place."""
    for name, value in changes.items():
        setattr(config, name, value)
