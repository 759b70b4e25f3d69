"""Who sees whom: encoders of transformers that read a row from one side, or only a part of it from both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

DIRECTIONS = ("both", "left", "right", "prefix")
"""What a position sees: all of the row, what is left or right of it and itself, or what is left and the first half."""


def sight(directions: torch.Tensor, length: int) -> torch.Tensor:
    """Return a mask by the number of each row's direction, true where a position (second axis) sees another (third)."""
    place = torch.arange(length, device=directions.device)
    left = place <= place[:, None]
    masks = (torch.ones_like(left), left, left.T, left | (place < length // 2))
    return torch.stack(masks)[directions]


def additive(visible: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return what is added to the attention scores: 0 where visible, else the lowest number; (rows, 1, from, to)."""
    return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, torch.finfo(dtype).min)[:, None]


@contextmanager
def seeing(model: PreTrainedModel, visible: torch.Tensor) -> Iterator[Any]:
    """Give the `attention_mask` with which a model's positions see each other as a mask like `sight`'s says."""
    if model.config.model_type == "deberta-v2":
        # It would multiply the embeddings by a mask of this shape; its encoder alone takes one as it is.
        encoder: torch.nn.Module = model.base_model.get_submodule("encoder")
        handle = encoder.register_forward_pre_hook(lambda _, inputs: (inputs[0], visible[:, None], *inputs[2:]))
        try:
            yield None
        finally:
            handle.remove()
    elif "sliding_attention" in (getattr(model.config, "layer_types", None) or ()):
        place = torch.arange(visible.shape[-1], device=visible.device)
        near = (place - place[:, None]).abs() <= model.config.sliding_window
        masks = {"full_attention": visible, "sliding_attention": visible & near}
        yield {layer_type: additive(mask, model.dtype) for layer_type, mask in masks.items()}
    else:
        yield additive(visible, model.dtype)
