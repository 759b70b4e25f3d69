"""Attention masks for encoders of transformers: bidirectional, left-to-right, right-to-left or prefix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headstart.core.lazy import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


DIRECTIONS = ("both", "left", "right", "prefix")
"""What a position attends to: the whole row; itself and its left or right; itself, its left and the first half."""


def attention_mask(directions: torch.Tensor, length: int) -> torch.Tensor:
    """Return a boolean mask of shape (rows, from, to), True where a position may attend to another.

    Args:
        directions: an index into `DIRECTIONS` for each row, shape (rows,).
        length: the number of positions in a row.
    """
    index = torch.arange(length, device=directions.device)
    left = index <= index[:, None]  # (from, to)
    masks = (torch.ones_like(left), left, left.T, left | (index < length // 2))
    return torch.stack(masks)[directions]


def additive_mask(mask: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a boolean mask (rows, from, to) as an additive one (rows, 1, from, to): 0 where True, else the minimum.

    Its dtype is float32 by default.
    """
    dtype = dtype or torch.float32
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)[:, None]


@contextmanager
def with_attention_mask(model: PreTrainedModel, mask: torch.Tensor) -> Iterator[Any]:
    """Yield the `attention_mask` argument that makes a model apply a boolean mask of shape (rows, from, to)."""
    if model.config.model_type == "deberta-v2":
        # The model multiplies its embeddings by `attention_mask`, so this shape is passed to the encoder directly.
        encoder: torch.nn.Module = model.base_model.get_submodule("encoder")
        handle = encoder.register_forward_pre_hook(lambda _, inputs: (inputs[0], mask[:, None], *inputs[2:]))
        try:
            yield None
        finally:
            handle.remove()
    elif "sliding_attention" in (getattr(model.config, "layer_types", None) or ()):
        index = torch.arange(mask.shape[-1], device=mask.device)
        window = (index - index[:, None]).abs() <= model.config.sliding_window
        masks = {"full_attention": mask, "sliding_attention": mask & window}
        yield {layer_type: additive_mask(layer_mask, model.dtype) for layer_type, layer_mask in masks.items()}
    else:
        yield additive_mask(mask, model.dtype)


def causal_states(network: PreTrainedModel, ids: torch.Tensor, padding: torch.Tensor | None = None) -> torch.Tensor:
    """Return the last states (rows, length, hidden) of an encoder that reads rows left to right.

    Args:
        network: an encoder of transformers with a head.
        ids: token ids, shape (rows, length).
        padding: 0 for padding, shape (rows, length); not needed if padding is at the end, where nothing attends to it.
    """
    left = torch.full((len(ids),), DIRECTIONS.index("left"), device=ids.device)
    mask = attention_mask(left, ids.shape[1])
    if padding is not None:
        mask = mask & (padding[:, None] > 0)
    with with_attention_mask(network, mask) as model_mask:
        states: torch.Tensor = network.base_model(input_ids=ids, attention_mask=model_mask).last_hidden_state
    return states
