"""The layouts of a family (its `kind` values), and the transformers config of a tiny network of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import numpy as np

from headstart.backbones.sizes import SIZES
from headstart.core import registry
from headstart.core.data import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def kinds(family: str) -> list[str | None]:
    """Return the kinds of a family, the default first; [None] for a family without kinds."""
    field = registry.resolve("backbones", family).Config.model_fields.get("kind")
    if field is None or get_origin(field.annotation) is not Literal:
        return [None]
    return sorted(get_args(field.annotation), key=lambda kind: kind != field.default)


def tiny_config(family: str, kind: str | None) -> PreTrainedConfig:
    """Return the transformers config of a family's tiny network, with a placeholder vocabulary of 100 tokens."""
    settings: dict[str, Any] = {registry.SELECTOR["backbones"]: family, "size": "tiny"}
    if kind is not None:
        settings["kind"] = kind
    backbone = registry.build("backbones", registry.resolve("backbones", family).Config.model_validate(settings))
    special = np.arange(100) < 5
    vocabulary = Vocabulary(100, 0, 2, 3, 4, special=special, starts_word=~special, tokens=["x"] * 100)
    config: PreTrainedConfig = backbone.layout(SIZES["tiny"], vocabulary)
    return config
