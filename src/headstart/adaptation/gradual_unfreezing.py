"""Gradual unfreezing: the head first, then one layer more at a time, from the top down."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from transformers import PreTrainedModel

from headstart.adaptation.base import BaseAdaptation
from headstart.adaptation.layers import LayerSettings, from_the_top, load
from headstart.core.contracts import ModelSource
from headstart.core.data import ParameterGroup


class GradualUnfreezing(BaseAdaptation):
    """Train the head, then free one layer more at a time, lower ones at a lower rate (ULMFiT's third stage)."""

    paper: ClassVar[str] = "Howard & Ruder 2018, ULMFiT, section 3.3"

    class Config(LayerSettings):
        """When layers are freed, how much slower lower ones move, and the shape of the rate."""

        name: Literal["gradual_unfreezing"] = "gradual_unfreezing"
        unfrozen_by: float = Field(
            0.5, ge=0, lt=1, description="share of the budget by which every layer moves; they are freed at equal steps"
        )
        discount: float = Field(
            2.6, ge=1, description="a layer's rate is that of the next one above over this; ULMFiT used 2.6"
        )
        lr_scheduler_type: Literal["slanted_triangular", "linear", "cosine", "constant", "trapezoid"] | None = Field(
            "slanted_triangular", description="in place of training.lr_scheduler_type; null: as it says"
        )
        warmup_ratio: float | None = Field(
            0.1, ge=0, lt=1, description="in place of training.warmup_ratio; ULMFiT's cut_frac of 0.1"
        )

    def __init__(self, config: Config | None = None) -> None:
        """Remember the section of the recipe."""
        self.config = config or GradualUnfreezing.Config()

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint with a new head; everything is trainable, in its time."""
        return load(source, self.config.reinit_layers)

    def groups(self, model: PreTrainedModel) -> list[ParameterGroup]:
        """Return one group for each level, the head's first, each with its rate and its start."""
        stages = from_the_top(model)
        pause = self.config.unfrozen_by / max(len(stages) - 1, 1)
        return [
            ParameterGroup(names, lr_scale=self.config.discount**-place, starts=pause * place)
            for place, names in enumerate(stages)
        ]
