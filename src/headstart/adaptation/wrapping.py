"""The config of a network of Headstart's own that wraps a plain network of transformers."""

from __future__ import annotations

import copy
import importlib
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from headstart.core import registry

_OF_HEADS = ("id2label", "label2id", "problem_type", "pad_token_id")


class WrappingConfig(PreTrainedConfig):
    """A config that contains the config of the plain network."""

    network: dict[str, Any] | None = None
    """The plain network's config, as in its config.json."""

    def plain(self) -> PreTrainedConfig:
        """Return the plain network's config."""
        assert self.network is not None, "the config has no network"
        kind = self.network["model_type"]
        if kind in registry.NETWORKS:
            importlib.import_module(registry.NETWORKS[kind])
        return AutoConfig.for_model(**copy.deepcopy(self.network))


def settings_of_head(config: Any) -> dict[str, Any]:
    """Return the settings of a plain network's config that its wrapper repeats: labels, problem type, padding."""
    return {key: getattr(config, key) for key in _OF_HEADS}
