"""Small heads of ours beside a network of transformers: saved in a subfolder, found again where the network came from.

The network itself stays plain, with no weight that transformers does not know. A head is a companion (a part of its
own name), written by `save_pretrained` like the network; only Headstart reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedConfig, PreTrainedModel

HeadT = TypeVar("HeadT", bound="Head")


class HeadConfig(PreTrainedConfig):
    """What a head reads and what it gives."""

    model_type = "headstart-head"
    hidden_size: int = 128
    """Width of the network's states."""
    output_size: int = 2
    """Width of the head's output."""
    initializer_range: float = 0.02


class Head(PreTrainedModel):
    """Base of the heads; a subclass builds its layers and calls `post_init`. It has no table of token vectors."""

    config_class = HeadConfig

    def get_input_embeddings(self) -> None:  # type: ignore[override]
        """Return nothing: a head reads states."""

    def get_output_embeddings(self) -> None:
        """Return nothing: tokens are told by the network's own output."""


def beside(network: PreTrainedModel, part: str, kind: type[HeadT], output_size: int) -> HeadT:
    """Return the head that was saved beside a loaded network, or a new one where none that fits is there."""
    wanted = HeadConfig(
        hidden_size=network.config.hidden_size,
        output_size=output_size,
        initializer_range=getattr(network.config, "initializer_range", 0.02),
    )
    origin = network.name_or_path or ""
    folder = Path(origin) / part
    if origin and (folder / "config.json").is_file():
        found = HeadConfig.from_pretrained(str(folder))
        # A network that grew since then needs a head of its own width.
        if (found.hidden_size, found.output_size) == (wanted.hidden_size, wanted.output_size):
            loaded: HeadT = kind.from_pretrained(str(folder), dtype=network.dtype)
            return loaded
    return kind(wanted)


@contextmanager
def recorded_states(network: PreTrainedModel) -> Iterator[list[torch.Tensor]]:
    """Give a list that holds the body's last states, of the whole row, once the network was called inside."""
    states: list[torch.Tensor] = []

    def record(_: torch.nn.Module, __: Any, output: Any) -> None:
        states.append(output[0])

    handle = network.base_model.register_forward_hook(record)
    try:
        yield states
    finally:
        handle.remove()
