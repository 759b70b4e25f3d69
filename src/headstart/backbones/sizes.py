"""Named sizes, and what every family does with a config of transformers."""

from __future__ import annotations

from typing import Any, NamedTuple

import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from headstart.core.contracts import Vocabulary
from headstart.core.errors import RecipeError


class Size(NamedTuple):
    """Layers, width and attention heads: the three numbers that name a network's size."""

    layers: int
    hidden: int
    heads: int

    def scaled(self, factor: float) -> Size:
        """Return a size of the same depth with the width multiplied, in whole heads of the same width."""
        width = self.hidden // self.heads
        heads = max(1, round(self.heads * factor))
        return Size(self.layers, heads * width, heads)

    @property
    def gated_width(self) -> int:
        """Return the width of a gated feed-forward: three matrices with the parameters of BERT's two at 4 × hidden."""
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
"""Named sizes. tiny to medium are those of Turc et al. 2019, base and large BERT's."""


def require_size(value: str) -> str:
    """Return the name of a size, or say which there are; for a field's validator."""
    if value not in SIZES:
        raise ValueError(f"it must be one of {', '.join(SIZES)}.")
    return value


def require_room(row_length: int, max_length: int) -> None:
    """Raise unless the model can read rows of this length."""
    if row_length > max_length:
        raise RecipeError(
            f"training.row_length is {row_length}; backbone.max_length is {max_length}",
            do="Shorten the rows or raise backbone.max_length",
        )


def from_config(
    config: PreTrainedConfig, vocabulary: Vocabulary, auto_class: str, changes: dict[str, Any]
) -> PreTrainedModel:
    """Build a new model of a transformers class, its special ids those of the vocabulary."""
    config.pad_token_id, config.cls_token_id, config.sep_token_id = vocabulary.pad, vocabulary.cls, vocabulary.sep
    config.bos_token_id, config.eos_token_id = vocabulary.cls, vocabulary.sep
    for name, value in changes.items():
        setattr(config, name, value)
    model: PreTrainedModel = getattr(transformers, auto_class).from_config(config)
    return model
