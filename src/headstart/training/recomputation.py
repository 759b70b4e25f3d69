"""Activation checkpointing: the backward pass computes the activations of a layer again instead of storing them."""

from __future__ import annotations

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from headstart.core.errors import RecipeError


def recompute_layers(module: torch.nn.Module) -> int:
    """Let each repeated layer keep only its input for the backward pass, and return how many layers there are.

    The result is the same to the bit, because dropout draws the same numbers again. A step computes one more forward
    pass of the layers, a third more FLOPs, which are not counted.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer)]
    if not layers:
        raise RecipeError(
            "`training.activation_checkpointing` is full, but this network has no layers that can be recomputed",
            allowed="The networks of transformers have them, the biLM does not",
            do="Set `training.activation_checkpointing` to none",
        )
    for layer in layers:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)  # type: ignore[assignment]
    return len(layers)
