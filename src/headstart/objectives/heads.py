"""Headstart's own heads on a network of transformers, saved in a subfolder and loaded from where the network came from.

The network itself stays a plain transformers model without extra weights. A head is saved with `save_pretrained` as a
named part next to the network; only Headstart reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from headstart.checkpoint.load import load_class, load_config

HeadT = TypeVar("HeadT", bound="Head")


class HeadConfig(PreTrainedConfig):
    """The input and output sizes of a head."""

    model_type = "headstart-head"
    hidden_size: int = 128
    """Width of the network's hidden states."""
    output_size: int = 2
    """Width of the head's output."""
    initializer_range: float = 0.02
    activation: str = "tanh"
    """The activation between the layers, by its name in transformers."""
    bias: bool = True
    """The first layer has a bias."""
    norm: bool = False
    """The head has a layer norm."""
    norm_eps: float = 1e-5
    layers: int = 1
    """The number of the network's layers that the head has weights for."""
    dropout: float = 0.0
    pooler: str = ""
    """The module of the network's classifiers that fine-tuning starts from this head's first layer; empty: none."""


class Head(PreTrainedModel):
    """Base class of the heads. A subclass builds its layers and calls `post_init`; a head has no token embeddings."""

    config_class = HeadConfig

    def get_input_embeddings(self) -> None:  # type: ignore[override]
        """Return None: a head reads hidden states."""

    def get_output_embeddings(self) -> None:
        """Return None: the network's own output layer predicts tokens."""


def load_or_create_head(
    network: PreTrainedModel, part: str, kind: type[HeadT], output_size: int, **settings: Any
) -> HeadT:
    """Return the head saved in the subfolder `part` of a loaded network, or a new one if none of its size exists.

    Args:
        network: the network that the head reads.
        part: the name of the subfolder.
        kind: the class of the head.
        output_size: the width of its output.
        settings: further fields of the config of a new head; a saved head has its own.
    """
    config = HeadConfig(
        hidden_size=network.config.hidden_size,
        output_size=output_size,
        initializer_range=getattr(network.config, "initializer_range", 0.02),
        **settings,
    )
    origin = network.name_or_path or ""
    folder = Path(origin) / part
    if origin and (folder / "config.json").is_file():
        saved = load_config(folder, HeadConfig)
        # The sizes differ if the network was grown after the head was saved.
        sizes = ("hidden_size", "output_size", "layers")
        if all(getattr(saved, name) == getattr(config, name) for name in sizes):
            loaded: HeadT = load_class(kind, folder, config=saved, dtype=network.dtype)
            return loaded
    return kind(config)


@contextmanager
def recorded_states(network: PreTrainedModel) -> Iterator[list[torch.Tensor]]:
    """Yield a list that receives the last hidden states (rows, length, hidden) of each call of the network."""
    states: list[torch.Tensor] = []

    def record(_: torch.nn.Module, __: Any, output: Any) -> None:
        states.append(output[0])

    handle = network.base_model.register_forward_hook(record)
    try:
        yield states
    finally:
        handle.remove()
