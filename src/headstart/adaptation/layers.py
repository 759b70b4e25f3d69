"""The level of a parameter in a network: the embeddings, one of the layers, or the head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from headstart.adaptation.base import AdaptationSettings
from headstart.core.contracts import ModelSource
from headstart.core.errors import RecipeError
from headstart.core.lazy import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SERVE_ALL_LAYERS = {"deberta-v2": ("encoder.rel_embeddings.", "encoder.LayerNorm.", "encoder.conv.")}
"""Parameters that a body declares after its layers although all layers use them, by model type."""


class LayerSettings(AdaptationSettings):
    """Settings of methods that train the body from the checkpoint's weights."""

    reinit_layers: int = Field(
        0,
        ge=0,
        description="number of top layers to reinitialize, together with the pooler: more stable on few labels (Zhang "
        "et al. 2021, who tried 1 to 6 of 24)",
    )


def levels(model: PreTrainedModel) -> dict[str, int]:
    """Return the level of each parameter: 0 for embeddings, 1 and up for the layers, one more for the head.

    Layers that share their weights are one level (ALBERT). The layers of an encoder-decoder are numbered through, the
    encoder's first. Parameters of the body above its last layer (a norm, a pooler) count as head.
    """
    prefix, stacks = _prefix(model), _stacks(model)
    starts = {name: sum(list(stacks.values())[:i]) for i, name in enumerate(stacks)}
    top, level = sum(stacks.values()) + 1, 0
    early = _SERVE_ALL_LAYERS.get(model.config.model_type, ())
    by_name: dict[str, int] = {}
    for name, _ in model.named_parameters():
        inner = name.removeprefix(prefix)
        stack = next((stack for stack in stacks if inner.startswith(f"{stack}.")), None)
        if not name.startswith(prefix):
            by_name[name] = top
        elif stack is not None:
            level = by_name[name] = starts[stack] + 1 + int(inner.removeprefix(f"{stack}.").partition(".")[0])
        elif "embed" in inner or inner.startswith(early):
            by_name[name] = 0
        else:
            by_name[name] = top if level == top - 1 else level
    return by_name


def levels_from_top(model: PreTrainedModel) -> list[tuple[str, ...]]:
    """Return the names of the trainable parameters by level, the head first, without empty levels."""
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    level_of = {name: level for name, level in levels(model).items() if name in trained}
    from_top = sorted({*level_of.values()}, reverse=True)
    return [tuple(name for name, level in level_of.items() if level == current) for current in from_top]


def depth(model: PreTrainedModel) -> int:
    """Return the number of layers with separate weights, over all stacks."""
    return sum(_stacks(model).values())


def layers_run(model: PreTrainedModel) -> int:
    """Return the number of layers that a forward pass runs in the last stack, shared weights counted every time."""
    last = list(_stacks(model).values())[-1]
    shares_weights = getattr(model.config, "num_hidden_groups", None) is not None
    return int(model.config.num_hidden_layers) if shares_weights else last


def require_depth(model: PreTrainedModel, layers: int, setting: str) -> None:
    """Raise unless the network has more than `layers` layers with separate weights."""
    own = depth(model)
    if layers >= own:
        shared = f", shared by {layers_run(model)}" if own < layers_run(model) else ""
        raise RecipeError(
            f"{setting} is {layers}, but {type(model).__name__} has {own} layer{'s' * (own != 1)} of weights{shared}",
            allowed="At least one layer must remain",
            do=f"Lower {setting}, or choose another checkpoint",
        )


def load(source: ModelSource, reinit_layers: int) -> PreTrainedModel:
    """Load the checkpoint with a new head and new weights in the top layers, all parameters trainable."""
    # The source initializes new weights with the run's seed, as each network does it.
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
    """Freeze the pre-trained parameters of the body; new parameters and the head stay trainable.

    A pooler inside the body counts as head: pre-training trained it, if at all, for another task (a frozen pooler
    costs MiniLM 13 points of accuracy on SST-2 with 512 labels, on validation rows).
    """
    pooler = getattr(model.base_model, "pooler", None)
    head = {id(parameter) for parameter in pooler.parameters()} if isinstance(pooler, torch.nn.Module) else set()
    inside = {id(parameter) for parameter in model.base_model.parameters()} - head
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in new or id(parameter) not in inside)


def _prefix(model: PreTrainedModel) -> str:
    """Return the prefix of the body's parameter names; empty if the model is a body itself."""
    body = model.base_model
    return next(f"{name}." if name else "" for name, module in model.named_modules() if module is body)


def _stacks(model: PreTrainedModel) -> dict[str, int]:
    """Return the number of layers of each stack of the body, by name: its outermost module lists.

    Module lists inside the embeddings (of networks that read characters) are not layers.
    """
    body: Any = model.base_model
    inputs = body.get_input_embeddings()
    embeddings = {id(module) for module in inputs.modules()} if isinstance(inputs, torch.nn.Module) else set()
    sizes: dict[str, int] = {}
    for name, module in body.named_modules():
        inside = id(module) in embeddings or name.startswith(tuple(f"{outer}." for outer in sizes))
        if isinstance(module, torch.nn.ModuleList) and not inside:
            sizes[name] = len(module)
    return sizes
