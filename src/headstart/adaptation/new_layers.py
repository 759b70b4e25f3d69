"""New layers on top of a frozen body, trained from scratch."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.adaptation.layers import depth, freeze_body, layers_run
from headstart.core.contracts import ModelSource, Task
from headstart.core.errors import RecipeError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_DECODER_DEPTH = ("num_decoder_layers", "decoder_layers")
"""The names under which encoder-decoder configs hold the number of decoder layers."""


class NewLayers(BaseAdaptation):
    """Stacked layers: freeze the body and train new layers, or a perceptron, between it and the head."""

    paper: ClassVar[str] = "Peters et al. 2019, To Tune or Not to Tune?; Houlsby et al. 2019, section 2"
    needs_whole_weights: ClassVar[str] = (
        "caches what its frozen body computes, so processes would run the body at different times"
    )

    class Config(AdaptationSettings):
        """The new layers."""

        name: Literal["new_layers"] = "new_layers"
        kind: Literal["layers", "perceptron"] = Field(
            "layers",
            description="layers: further layers of the network's own type, which give a plain, deeper model; "
            "perceptron: an MLP on each position, which needs Headstart to load; the body runs once per text",
        )
        layers: int = Field(1, ge=1, le=24, description="for layers: their number")
        hidden: int | None = Field(
            None, ge=1, description="for perceptron: its width; default: four times the hidden size"
        )
        cache_mb: float = Field(2000, ge=0, description="for perceptron: size of the cache of hidden states")

    def __init__(self, config: Config | None = None) -> None:
        """Store the config."""
        self.config = config or NewLayers.Config()

    def supports(self, task: Task, family: str) -> str | None:
        """Accept every task with a training loss; a perceptron needs a head on top of the body."""
        from headstart.adaptation.on_top_network import HEADS

        if self.config.kind == "perceptron" and task.learns and task.auto_class(family) not in HEADS:
            return "the task has no separate head, which the perceptron needs"
        return super().supports(task, family)

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint into a deeper network, or add a perceptron; the pre-trained body is frozen."""
        from headstart.adaptation.frozen import FrozenBody
        from headstart.adaptation.on_top import LayerSelection, build_top

        model = source.pretrained()
        if self.config.kind == "layers":
            model = source.pretrained(config=self._deeper(model))
            freeze_body(model, source.new_parameters())
            if getattr(model.config, "num_decoder_layers", None) and model.can_generate():
                # transformers 5 sizes T5's cache by the encoder's depth, and fails on a deeper decoder.
                model.generation_config.use_cache = False
            return model
        freeze_body(model, source.new_parameters())
        width = model.config.hidden_size
        top = build_top("perceptron", 0, width, self.config.hidden or 4 * width)
        frozen = FrozenBody(model.base_model, LayerSelection(), top, int(self.config.cache_mb * 1e6))
        setattr(model, model.base_model_prefix, frozen)
        return model

    def finish(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return the deeper network unchanged; with a perceptron, a Headstart network."""
        from headstart.adaptation.on_top import LayerSelection
        from headstart.adaptation.on_top_network import wrap

        if self.config.kind == "layers":
            return model
        frozen = getattr(model, model.base_model_prefix)
        setattr(model, model.base_model_prefix, frozen.body)
        hidden = self.config.hidden or 4 * model.config.hidden_size
        return wrap(model, LayerSelection(), frozen.top, "perceptron", hidden)

    def _deeper(self, model: PreTrainedModel) -> Any:
        """Return the network's config with more layers, in an encoder-decoder those of the decoder."""
        if depth(model) < layers_run(model):
            raise RecipeError(
                f"adaptation.kind is 'layers', but the layers of {type(model).__name__} share their weights",
                allowed="New layers need separate weights",
                do="Set adaptation.kind to perceptron, or choose another checkpoint",
            )
        config: Any = copy.deepcopy(model.config)
        fields = _DECODER_DEPTH if hasattr(model.base_model, "decoder") else ("num_hidden_layers",)
        name = next(field for field in fields if getattr(config, field, None) is not None)
        before: int = getattr(config, name)
        setattr(config, name, before + self.config.layers)
        kinds = getattr(config, "layer_types", None)
        if kinds:
            config.layer_types = [*kinds, *(kinds[i % before] for i in range(self.config.layers))]
        return config
