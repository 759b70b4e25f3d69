"""Frozen features: the body stays as pre-training left it, a head is trained on the states of its layers."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from transformers import PreTrainedModel

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.adaptation.frozen import FrozenBody
from headstart.adaptation.layers import freeze_body, repetitions
from headstart.adaptation.on_top import Reads, build_top
from headstart.adaptation.on_top_network import HEADS, around
from headstart.core.contracts import ModelSource, Task
from headstart.core.errors import RecipeError

_CONCATENATED = 4
"""BERT's best features were the last four layers side by side (Devlin et al. 2019, table 7)."""
_ONE_POSITION = ("SequenceClassification", "MultipleChoice")
_FIRST = ("albert", "bert", "camembert", "deberta-v2", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta")
"""Types of network whose heads for a whole text read its first position."""
_TOPS = {"top": "none", "mean": "none", "concat": "projection", "mix": "mix"}


class OwnMixture(torch.nn.Module):
    """The mixture that a biLM has of its own, over states that lie side by side."""

    def __init__(self, mixture: torch.nn.Module) -> None:
        """Hold the network's own module, which is trained where it stands."""
        super().__init__()
        self.mixture = mixture

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Mix the layers."""
        layers = states.unflatten(-1, (self.mixture.get_parameter("weights").numel(), -1))
        return self.mixture(layers.unbind(-2))  # type: ignore[no-any-return]


class Features(BaseAdaptation):
    """Freeze the body and train the head on its layers' states, which are computed once per text."""

    paper: ClassVar[str] = "Peters et al. 2018, ELMo; Devlin et al. 2019, BERT, section 5.3"

    class Config(AdaptationSettings):
        """Which layers are read, and how much memory their states may take."""

        name: Literal["features"] = "features"
        layers: Literal["top", "mean", "concat", "mix"] = Field(
            "top",
            description="what the head reads: the top layer, a mean of layers, layers side by side, or ELMo's learned "
            "mixture times γ. All but top make a network that needs Headstart to load; a biLM mixes its layers itself",
        )
        last: int | None = Field(
            None,
            ge=1,
            description="how many layers, from the top; unless set 4 for concat, else all and the embeddings",
        )
        normalise: bool | None = Field(
            None,
            description="bring each layer's states to one scale first, as ELMo may; by default for concat alone",
        )
        pooling: Literal["own", "mean"] = Field(
            "own",
            description="what a head reads that reads one position of a text: that position, or the mean of all, which "
            "suits sentence encoders. Where the head reads [CLS], it makes a network that needs Headstart to load",
        )
        cache_mb: float = Field(2000, ge=0, description="states are kept up to this size, then computed anew")

        @model_validator(mode="after")
        def _top_is_one_layer(self) -> Features.Config:
            if self.layers == "top" and (self.last is not None or self.normalise):
                found = "normalise is true" if self.last is None else f"last is {self.last}"
                raise ValueError(
                    f"{found}, and layers is 'top', which reads one layer as it is; they belong to mean, concat and "
                    "mix. Choose one of those, or leave them out."
                )
            return self

    def __init__(self, config: Config | None = None) -> None:
        """Remember the section of the recipe."""
        self.config = config or Features.Config()

    def supports(self, task: Task, family: str) -> str | None:
        """Take tasks with a head of their own."""
        if task.learns and task.auto_class(family) not in HEADS:
            return "the task has no head beside the body, and so nothing that could be trained"
        return super().supports(task, family)

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint, freeze whatever came from it inside the body, and put what reads the layers on it."""
        model = source.pretrained()
        freeze_body(model, source.new_parameters())
        body: Any = model.base_model
        mixture, settings = getattr(body, "mix", None), self.config
        as_it_is = settings.layers in ("top", "mix") and settings.last is None and not settings.normalise
        top: torch.nn.Module
        if mixture is not None and as_it_is:
            reads, top = Reads(repetitions(model) + 1), OwnMixture(mixture)
        else:
            reads = self._reads(repetitions(model) + 1, self._pools(model))
            top = build_top(_TOPS[settings.layers], reads.last, body.config.hidden_size)
            if mixture is not None:
                mixture.requires_grad_(False)
        setattr(model, model.base_model_prefix, FrozenBody(body, reads, top, int(settings.cache_mb * 1e6)))
        return model

    def finish(self, model: PreTrainedModel) -> PreTrainedModel:
        """Put the body back in its place, so that the saved model is plain, unless more than its output is read."""
        frozen = getattr(model, model.base_model_prefix)
        setattr(model, model.base_model_prefix, frozen.body)
        if not (frozen.reads.last or frozen.reads.pool) or isinstance(frozen.top, OwnMixture):
            return model
        return around(model, frozen.reads, frozen.top, _TOPS[self.config.layers])

    def _pools(self, model: PreTrainedModel) -> bool:
        """Say whether the mean must be put where the head reads; a head that can pool by itself is told to."""
        name = type(model).__name__
        if self.config.pooling == "own" or not name.endswith(_ONE_POSITION):
            return False
        if hasattr(model.config, "classifier_pooling"):
            model.config.classifier_pooling = "mean"
            return False
        if model.config.model_type not in _FIRST:
            raise RecipeError(
                f"adaptation.pooling is 'mean', and the head of {name} does not read the first position",
                allowed=f"Networks that pool by themselves, and {', '.join(_FIRST)}",
                do="Leave out adaptation.pooling",
            )
        return True

    def _reads(self, states: int, pool: bool) -> Reads:
        """Say which of the network's states are read, the embeddings being the lowest."""
        settings = self.config
        if settings.layers == "top":
            return Reads(pool=pool)
        last = settings.last or (min(_CONCATENATED, states - 1) if settings.layers == "concat" else states)
        if last > states:
            raise RecipeError(
                f"adaptation.last is {last}; the network has {states - 1} layers, and the embeddings",
                allowed=f"At most {states}",
                do="Lower adaptation.last",
            )
        # A network's inner states grow from layer to layer; side by side, the largest would drown the others.
        normalise = settings.layers == "concat" if settings.normalise is None else settings.normalise
        return Reads(last, settings.layers == "mean", normalise, pool)
