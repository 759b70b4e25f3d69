"""A small network grown into a larger one, so that what it learnt is not learnt anew.

In depth, the stack of layers is laid on itself (Gong et al. 2019, StackBERT: layers of a trained network are alike, so
a copy is a better start than chance). In width, every unit is there twice, or more often, and whoever reads it shares
its weight among the copies, so that the function stays the same (Chen et al. 2016, Net2Net; Chen et al. 2022,
bert2BERT). The shares are drawn at random: equal ones would give the copies equal gradients for ever.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from pydantic import Field
from transformers import PreTrainedModel

from headstart.core.config import Section
from headstart.core.errors import RecipeError

_DEPTHS = ("num_hidden_layers", "num_layers", "n_layer", "encoder_layers", "decoder_layers", "num_decoder_layers")
_NORM_BEFORE_OUTPUT = {"bert": "cls.predictions.transform.LayerNorm.", "roberta": "lm_head.layer_norm."}
"""For each layout that can be widened, what stands before the output layer, which is tied to the embeddings.

Other layouts pack several matrices into one, or have an input of another width than their layers."""


class Growth(Section):
    """How large a checkpoint is made before it is trained on."""

    layers: int | None = Field(None, ge=1, description="layers to grow to, by stacking those that are there")
    hidden: int | None = Field(
        None, ge=1, description="width to grow to, a multiple of the present one; the function stays (bert, roberta)"
    )


def require_growth(config: Any, growth: Growth) -> None:
    """Raise unless a checkpoint of this config can grow so."""
    depth = max(_depths(config).values())
    if growth.layers is not None and growth.layers < depth:
        raise RecipeError(
            f"backbone.grow.layers is {growth.layers}; the checkpoint has {depth}",
            allowed="A network grows to as many layers or more",
            do="Raise backbone.grow.layers, or start from a smaller checkpoint",
        )
    width, kind = config.hidden_size, config.model_type
    if growth.hidden is not None and (
        kind not in _NORM_BEFORE_OUTPUT or growth.hidden < width or growth.hidden % width
    ):
        raise RecipeError(
            f"backbone.grow.hidden is {growth.hidden}; the checkpoint is a {kind!r}, {width} wide",
            allowed=f"A multiple of that width, in {' or '.join(_NORM_BEFORE_OUTPUT)}",
            do="Choose another width, or grow in layers alone",
        )


def grow(model: PreTrainedModel, growth: Growth) -> PreTrainedModel:
    """Return a larger network of the same class that starts from a smaller one's weights."""
    require_growth(model.config, growth)
    if growth.hidden is not None:
        model = widen_layers(model, growth.hidden)
    return model if growth.layers is None else stack_layers(model, growth.layers)


def stack_layers(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """Return a deeper network: layer i has the weights of layer i modulo the old depth, all else stays.

    An encoder-decoder grows on both sides. Where layers share their weights, as in ALBERT, they are gone through more
    often. What a first layer has not, and its copy higher up has, such as a norm, is new.
    """
    config: Any = copy.deepcopy(model.config)
    for name, depth in _depths(config).items():
        setattr(config, name, layers)
        kinds = getattr(config, "layer_types", None)
        if kinds and len(kinds) == depth:
            config.layer_types = [kinds[place % depth] for place in range(layers)]
    grown = type(model)(config)
    before, after = _stacks(model), _stacks(grown)
    deeper = {name: depth for name, depth in before.items() if after.get(name, depth) > depth}
    weights = model.state_dict()
    taken: dict[str, torch.Tensor] = {}
    for name, value in grown.state_dict().items():
        source = weights.get(_below(name, deeper))
        if source is not None and source.shape == value.shape:
            taken[name] = source
    grown.load_state_dict(taken, strict=False)
    return grown


def _depths(config: Any) -> dict[str, int]:
    return {name: getattr(config, name) for name in _DEPTHS if isinstance(getattr(config, name, None), int)}


def _stacks(model: PreTrainedModel) -> dict[str, int]:
    return {name: len(m) for name, m in model.named_modules() if isinstance(m, torch.nn.ModuleList)}


def _below(name: str, deeper: dict[str, int]) -> str:
    """Return the name of a weight in the layer that is copied: `layers.9.…` becomes `layers.1.…` where there were 4."""
    for stack, depth in deeper.items():
        if name.startswith(f"{stack}."):
            number, _, rest = name.removeprefix(f"{stack}.").partition(".")
            return f"{stack}.{int(number) % depth}.{rest}"
    return name


def widen_layers(model: PreTrainedModel, hidden: int) -> PreTrainedModel:
    """Return a network of a multiple of the width, with as many times the heads, that computes the same function."""
    config: Any = copy.deepcopy(model.config)
    times = hidden // config.hidden_size
    for name in ("hidden_size", "num_attention_heads", "intermediate_size"):
        setattr(config, name, times * getattr(config, name))
    grown = type(model)(config)
    tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    small, taken = model.state_dict(keep_vars=True), {}
    for name, value in grown.state_dict().items():
        source = small[name]
        reads = source.dim() == 2 and id(source) not in tables and value.shape[1] > source.shape[1]
        taken[name] = _shared(source.detach(), times) if reads else source.detach()
        taken[name] = taken[name].repeat([new // old for new, old in zip(value.shape, taken[name].shape, strict=True)])
        # The output layer is a table of the embeddings, repeated and not shared, so what it reads must be smaller.
        if name.startswith(_NORM_BEFORE_OUTPUT[config.model_type]):
            taken[name] = taken[name] / times
    grown.load_state_dict(taken)
    return grown


def _shared(matrix: torch.Tensor, times: int) -> torch.Tensor:
    """Lay copies of a matrix side by side, each element shared among them in random parts that make a whole."""
    parts = 0.5 + torch.rand(times, *matrix.shape)
    return torch.cat(list(matrix * parts / parts.sum(0)), dim=1)
