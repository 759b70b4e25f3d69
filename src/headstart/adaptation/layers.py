"""Where a parameter stands in a network: in the embeddings, in one of the layers, or above them."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from transformers import PreTrainedModel

from headstart.adaptation.base import AdaptationSettings
from headstart.core.contracts import ModelSource
from headstart.core.errors import RecipeError

_SERVE_ALL_LAYERS = {"deberta-v2": ("encoder.rel_embeddings.", "encoder.LayerNorm.", "encoder.conv.")}
"""Parameters that a body declares after its layers and that serve them from below, by type of network."""


class LayerSettings(AdaptationSettings):
    """What a method that trains a body from the checkpoint's weights may be told about its layers."""

    reinit_layers: int = Field(
        0,
        ge=0,
        description="top layers that start from new weights, and the pooler with them: steadier on few labels "
        "(Zhang et al. 2021, who tried 1 to 6 of 24)",
    )


def levels(model: PreTrainedModel) -> dict[str, int]:
    """Return the level of each parameter: 0 in the embeddings, 1 and more in the layers, one above them in the head.

    Layers that share their weights are one level (ALBERT). An encoder-decoder's are counted through, the encoder's
    first, since the decoder reads what they give. What a body holds above its last layer, a norm or a pooler, counts
    as head.
    """
    prefix, stacks = _prefix(model), _stacks(model)
    starts = {name: sum(list(stacks.values())[:place]) for place, name in enumerate(stacks)}
    top, level = sum(stacks.values()) + 1, 0
    early = _SERVE_ALL_LAYERS.get(model.config.model_type, ())
    found: dict[str, int] = {}
    for name, _ in model.named_parameters():
        inner = name.removeprefix(prefix)
        stack = next((stack for stack in stacks if inner.startswith(f"{stack}.")), None)
        if not name.startswith(prefix):
            found[name] = top
        elif stack is not None:
            level = found[name] = starts[stack] + 1 + int(inner.removeprefix(f"{stack}.").partition(".")[0])
        elif "embed" in inner or inner.startswith(early):
            found[name] = 0
        else:
            found[name] = top if level == top - 1 else level
    return found


def from_the_top(model: PreTrainedModel) -> list[tuple[str, ...]]:
    """Return the names of the trainable parameters level by level, the head's first; empty levels are left out."""
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    known = {name: level for name, level in levels(model).items() if name in trained}
    return [tuple(name for name, found in known.items() if found == level) for level in sorted({*known.values()})[::-1]]


def depth(model: PreTrainedModel) -> int:
    """Return the number of layers with weights of their own."""
    return sum(_stacks(model).values())


def repetitions(model: PreTrainedModel) -> int:
    """Return how many layers the last stack runs through, whose states a head may read: a decoder's where it is one."""
    last = list(_stacks(model).values())[-1]
    shares = getattr(model.config, "num_hidden_groups", None) is not None
    return int(model.config.num_hidden_layers) if shares else last


def require_depth(model: PreTrainedModel, layers: int, setting: str) -> None:
    """Raise unless the network has more than so many layers with weights of their own."""
    own = depth(model)
    if layers >= own:
        shared = f", shared by {repetitions(model)}" if own < repetitions(model) else ""
        raise RecipeError(
            f"{setting} is {layers}; {type(model).__name__} has {own} layer{'s' * (own != 1)} of weights{shared}",
            allowed="One of them at least must be left",
            do=f"Lower {setting}, or choose another checkpoint",
        )


def load(source: ModelSource, reinit_layers: int) -> PreTrainedModel:
    """Load the checkpoint with a new head, all of it trainable, and so many top layers with new weights."""
    # The source draws new weights by the run's seed, in the manner of each network, so none is drawn here.
    fresh = source.fresh() if reinit_layers else None
    model = source.pretrained()
    if fresh is not None:
        require_depth(model, reinit_layers, "adaptation.reinit_layers")
        kept, new = depth(model) - reinit_layers, dict(fresh.named_parameters())
        with torch.no_grad():
            for name, level in levels(model).items():
                if level > kept:
                    model.get_parameter(name).copy_(new[name])
    return model


def freeze_body(model: PreTrainedModel, new: frozenset[str]) -> None:
    """Leave trainable what the checkpoint did not hold, and the head; whatever else came from it in the body is frozen.

    A pooler inside the body is part of the head: what it learnt in pre-training, if anything, was to read one position
    for another task (MiniLM's frozen one takes 13 points of accuracy on SST-2 with 512 labels, on validation rows).
    """
    pooler = getattr(model.base_model, "pooler", None)
    head = {id(parameter) for parameter in pooler.parameters()} if isinstance(pooler, torch.nn.Module) else set()
    inside = {id(parameter) for parameter in model.base_model.parameters()} - head
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in new or id(parameter) not in inside)


def _prefix(model: PreTrainedModel) -> str:
    """Return what the names of the body's parameters begin with; empty where the model is a body itself."""
    body = model.base_model
    return next(f"{name}." if name else "" for name, module in model.named_modules() if module is body)


def _stacks(model: PreTrainedModel) -> dict[str, int]:
    """Return the body's stacks of layers by name, and how many each has: lists of modules inside no other list.

    A network that reads characters has such lists in its embeddings as well; those are no layers.
    """
    body: Any = model.base_model
    inputs = body.get_input_embeddings()
    below = {id(module) for module in inputs.modules()} if isinstance(inputs, torch.nn.Module) else set()
    found: dict[str, int] = {}
    for name, module in body.named_modules():
        inside = id(module) in below or name.startswith(tuple(f"{outer}." for outer in found))
        if isinstance(module, torch.nn.ModuleList) and not inside:
            found[name] = len(module)
    return found
