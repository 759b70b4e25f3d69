"""New layers on top of a frozen body: what pre-training gave is read by a part that is trained from scratch."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Literal

from pydantic import Field
from transformers import PreTrainedModel

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.adaptation.frozen import FrozenBody
from headstart.adaptation.layers import depth, freeze_body, repetitions
from headstart.adaptation.on_top import Reads, build_top
from headstart.adaptation.on_top_network import HEADS, around
from headstart.core.contracts import ModelSource, Task
from headstart.core.errors import RecipeError

_OF_DECODERS = ("num_decoder_layers", "decoder_layers")


class NewLayers(BaseAdaptation):
    """Freeze the body and train new layers, or a perceptron, between it and the head."""

    paper: ClassVar[str] = "Peters et al. 2019, To Tune or Not to Tune?; Houlsby et al. 2019, section 2"

    class Config(AdaptationSettings):
        """What is put on top."""

        name: Literal["new_layers"] = "new_layers"
        kind: Literal["layers", "perceptron"] = Field(
            "layers",
            description="layers like those of the network, which make a plain, deeper one; or a perceptron on each "
            "position, whose network needs Headstart to load, and for which the body is computed once per text",
        )
        layers: int = Field(1, ge=1, le=24, description="how many, for kind: layers")
        hidden: int | None = Field(None, ge=1, description="width of the perceptron; four times that of the states")
        cache_mb: float = Field(2000, ge=0, description="for a perceptron: states are kept up to this size")

    def __init__(self, config: Config | None = None) -> None:
        """Remember the section of the recipe."""
        self.config = config or NewLayers.Config()

    def supports(self, task: Task, family: str) -> str | None:
        """Take every task that learns; a perceptron needs a head of the task's own to serve."""
        if self.config.kind == "perceptron" and task.learns and task.auto_class(family) not in HEADS:
            return "the task has no head beside the body, and a perceptron stands between the two"
        return super().supports(task, family)

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint into a deeper network, or put a perceptron on it; what came from it is frozen."""
        model = source.pretrained()
        if self.config.kind == "layers":
            model = source.pretrained(config=self._deeper(model))
            freeze_body(model, source.new_parameters())
            if getattr(model.config, "num_decoder_layers", None) and model.can_generate():
                # transformers 5 makes room for as many layers as a T5's encoder has, and breaks on a deeper decoder.
                model.generation_config.use_cache = False
            return model
        freeze_body(model, source.new_parameters())
        width = model.config.hidden_size
        top = build_top("perceptron", 0, width, self.config.hidden or 4 * width)
        frozen = FrozenBody(model.base_model, Reads(), top, int(self.config.cache_mb * 1e6))
        setattr(model, model.base_model_prefix, frozen)
        return model

    def finish(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return the deeper network as it is; a perceptron makes a network of ours."""
        if self.config.kind == "layers":
            return model
        frozen = getattr(model, model.base_model_prefix)
        setattr(model, model.base_model_prefix, frozen.body)
        hidden = self.config.hidden or 4 * model.config.hidden_size
        return around(model, Reads(), frozen.top, "perceptron", hidden)

    def _deeper(self, model: PreTrainedModel) -> Any:
        """Return the network's config with more layers: a decoder's where there is one, since its head reads that."""
        if depth(model) < repetitions(model):
            raise RecipeError(
                f"adaptation.kind is 'layers', and the layers of {type(model).__name__} share their weights",
                allowed="A layer more would be one of theirs",
                do="Set adaptation.kind to perceptron, or choose another checkpoint",
            )
        config: Any = copy.deepcopy(model.config)
        sides = _OF_DECODERS if hasattr(model.base_model, "decoder") else ("num_hidden_layers",)
        name = next(side for side in sides if getattr(config, side, None) is not None)
        before: int = getattr(config, name)
        setattr(config, name, before + self.config.layers)
        kinds = getattr(config, "layer_types", None)
        if kinds:
            config.layer_types = [*kinds, *(kinds[place % before] for place in range(self.config.layers))]
        return config
