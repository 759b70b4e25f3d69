"""Smaller steps for lower layers: what is more general changes less."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from transformers import PreTrainedModel

from headstart.adaptation.base import BaseAdaptation
from headstart.adaptation.layers import LayerSettings, from_the_top, load
from headstart.core.contracts import ModelSource
from headstart.core.data import ParameterGroup


class LayerwiseDecay(BaseAdaptation):
    """Fine-tune every parameter, each layer by a share of the rate of the one above it."""

    paper: ClassVar[str] = "Clark et al. 2020, ELECTRA, appendix A.2; Howard & Ruder 2018, ULMFiT; Zhang et al. 2021"

    class Config(LayerSettings):
        """How much less each layer moves."""

        name: Literal["layerwise_decay"] = "layerwise_decay"
        decay: float = Field(
            0.9, gt=0, le=1, description="the rate of a layer over that of the next one above; ELECTRA used 0.8 and 0.9"
        )

    def __init__(self, config: Config | None = None) -> None:
        """Remember the section of the recipe."""
        self.config = config or LayerwiseDecay.Config()

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint with a new head; everything is trainable."""
        return load(source, self.config.reinit_layers)

    def groups(self, model: PreTrainedModel) -> list[ParameterGroup]:
        """Return one group for each level: the head at the full rate, the embeddings at the least."""
        return [
            ParameterGroup(names, lr_scale=self.config.decay**place) for place, names in enumerate(from_the_top(model))
        ]
