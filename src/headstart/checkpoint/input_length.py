"""How many tokens a network can read at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headstart.core.lazy import torch

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_COUNT_FROM_PAD = frozenset({
    "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet",
    "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
})  # fmt: skip
"""Model types whose positions start at `pad_token_id` + 1, so the first rows of their position table are unused."""
_SIZES = ("max_position_embeddings", "max_encoder_position_embeddings")
"""Names of the number of positions in configs; the second is LED's."""
_TABLES = ("position_embeddings", "positions_embed", "embed_positions", "wpe")
"""Names of learned position tables in transformers' networks."""


def plain_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the config of the plain network in one of Headstart's wrappers; of another network, its own."""
    plain: Any = getattr(config, "plain", None)
    return config if plain is None else plain()


def max_positions(config: PreTrainedConfig) -> int | None:
    """Return the longest row that a network with this config can read, or None if its positions are relative."""
    config = plain_config(config)
    positions: int = next((size for name in _SIZES if (size := getattr(config, name, None))), 0)
    if config.model_type in _COUNT_FROM_PAD:
        positions -= (config.pad_token_id or 0) + 1
    # XLNet's config has -1 for no limit.
    return positions if positions > 0 else None


def learned_positions(model: PreTrainedModel) -> int | None:
    """Return the longest row of a network with a table of positions, which nothing can extend; None without a table.

    Rotary and relative positions are computed, and exist beyond the maximum that the config has for them.
    """
    has_table = any(name.endswith(_TABLES) and isinstance(m, torch.nn.Embedding) for name, m in model.named_modules())
    return max_positions(model.config) if has_table else None
