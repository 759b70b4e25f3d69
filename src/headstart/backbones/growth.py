"""Grow a trained network into a larger one that starts from its weights.

In depth, the stack of layers is repeated (Gong et al. 2019, StackBERT: the layers of a trained network are similar, so
a copy is a better start than random weights). In width, every unit is duplicated, and the weights that read it are
split among the copies, so that the function is preserved (Chen et al. 2016, Net2Net; Chen et al. 2022, bert2BERT). The
split is random, because with equal parts the copies would have equal gradients in every step.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from pydantic import Field

from headstart.core.config import Section
from headstart.core.errors import RecipeError
from headstart.core.lazy import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_DEPTHS = ("num_hidden_layers", "num_layers", "n_layer", "encoder_layers", "decoder_layers", "num_decoder_layers")
_NORM_BEFORE_OUTPUT = {"bert": "cls.predictions.transform.LayerNorm.", "roberta": "lm_head.layer_norm."}
"""The layouts that can be widened, with the name of the norm before the output layer, which is tied to the embeddings.

Other layouts pack several matrices into one, or their embeddings and layers differ in width."""


class Growth(Section):
    """The size of a checkpoint after growth."""

    layers: int | None = Field(None, ge=1, description="number of layers, reached by stacking the existing ones")
    hidden: int | None = Field(
        None,
        ge=1,
        description="hidden size, a multiple of the current one; preserves the function (bert and roberta only)",
    )


def require_growth(config: Any, growth: Growth) -> None:
    """Raise unless a checkpoint with this config can grow to this size."""
    depth = max(_depths(config).values())
    if growth.layers is not None and growth.layers < depth:
        raise RecipeError(
            f"`backbone.grow.layers` is {growth.layers}, but the checkpoint has {depth} layers",
            allowed="A network cannot shrink",
            do="Raise `backbone.grow.layers`, or use a smaller checkpoint",
        )
    width, kind = config.hidden_size, config.model_type
    if growth.hidden is not None and (
        kind not in _NORM_BEFORE_OUTPUT or growth.hidden < width or growth.hidden % width
    ):
        raise RecipeError(
            f"`backbone.grow.hidden` is {growth.hidden}, but the checkpoint is a {kind!r} of hidden size {width}",
            allowed=f"It must be a multiple of the hidden size, and the layout {' or '.join(_NORM_BEFORE_OUTPUT)}",
            do="Change `backbone.grow.hidden`, or use `backbone.grow.layers` only",
        )


def grow(model: PreTrainedModel, growth: Growth) -> PreTrainedModel:
    """Return a larger network of the same class, initialized from the weights of `model`."""
    require_growth(model.config, growth)
    if growth.hidden is not None:
        model = widen_layers(model, growth.hidden)
    return model if growth.layers is None else stack_layers(model, growth.layers)


def stack_layers(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """Return a deeper network: layer i has the weights of layer i modulo the old depth, all other weights are copied.

    An encoder-decoder grows on both sides. If layers share weights, as in ALBERT, they are applied more often. A module
    that only later layers have, such as a norm that the first layer lacks, is initialized randomly in its copies.
    """
    config: Any = copy.deepcopy(model.config)
    for name, depth in _depths(config).items():
        setattr(config, name, layers)
        kinds = getattr(config, "layer_types", None)
        if kinds and len(kinds) == depth:
            config.layer_types = [kinds[index % depth] for index in range(layers)]
    grown = type(model)(config)
    before, after = _stacks(model), _stacks(grown)
    deeper = {name: depth for name, depth in before.items() if after.get(name, depth) > depth}
    weights = model.state_dict()
    copied: dict[str, torch.Tensor] = {}
    for name, value in grown.state_dict().items():
        source = weights.get(_source_name(name, deeper))
        if source is not None and source.shape == value.shape:
            copied[name] = source
    grown.load_state_dict(copied, strict=False)
    return grown


def _depths(config: Any) -> dict[str, int]:
    return {name: getattr(config, name) for name in _DEPTHS if isinstance(getattr(config, name, None), int)}


def _stacks(model: PreTrainedModel) -> dict[str, int]:
    return {name: len(m) for name, m in model.named_modules() if isinstance(m, torch.nn.ModuleList)}


def _source_name(name: str, deeper: dict[str, int]) -> str:
    """Return the name of a weight in the layer it is copied from: with 4 layers, `layers.9.…` becomes `layers.1.…`."""
    for stack, depth in deeper.items():
        if name.startswith(f"{stack}."):
            number, _, rest = name.removeprefix(f"{stack}.").partition(".")
            return f"{stack}.{int(number) % depth}.{rest}"
    return name


def widen_layers(model: PreTrainedModel, hidden: int) -> PreTrainedModel:
    """Return a network that computes the same function with a multiple of the width and of the attention heads."""
    config: Any = copy.deepcopy(model.config)
    times = hidden // config.hidden_size
    for name in ("hidden_size", "num_attention_heads", "intermediate_size"):
        setattr(config, name, times * getattr(config, name))
    grown = type(model)(config)
    tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    output: Any = model.get_output_embeddings()
    is_tied = output is not None and id(output.weight) in tables
    weights, widened = model.state_dict(keep_vars=True), {}
    for name, value in grown.state_dict().items():
        source = weights[name]
        reads_copies = source.dim() == 2 and id(source) not in tables and value.shape[1] > source.shape[1]
        weight = _split(source.detach(), times) if reads_copies else source.detach()
        weight = weight.repeat([new // old for new, old in zip(value.shape, weight.shape, strict=True)])
        # A tied output layer is that of the embeddings, which are repeated and not split, so its input is scaled down.
        if is_tied and name.startswith(_NORM_BEFORE_OUTPUT[config.model_type]):
            weight = weight / times
        widened[name] = weight
    grown.load_state_dict(widened)
    return grown


def _split(matrix: torch.Tensor, times: int) -> torch.Tensor:
    """Return `times` matrices side by side that sum to `matrix`; each element is split in random proportions."""
    parts = 0.5 + torch.rand(times, *matrix.shape)
    return torch.cat(list(matrix * parts / parts.sum(0)), dim=1)
