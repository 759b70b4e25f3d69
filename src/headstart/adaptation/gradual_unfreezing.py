"""Gradual unfreezing: train the head first, then unfreeze one layer at a time from the top."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from headstart.adaptation.base import BaseAdaptation
from headstart.adaptation.layers import LayerSettings, levels_from_top, load
from headstart.core.contracts import ModelSource
from headstart.core.data import ParameterGroup

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class GradualUnfreezing(BaseAdaptation):
    """Gradual unfreezing: train the head, then unfreeze layers from the top, lower ones with a lower learning rate."""

    paper: ClassVar[str] = "Howard & Ruder 2018, ULMFiT, section 3.3"

    class Config(LayerSettings):
        """The unfreezing schedule, the learning rates of the layers, and the learning rate schedule."""

        newer: ClassVar[tuple[str, ...]] = ("unfreeze",)
        name: Literal["gradual_unfreezing"] = "gradual_unfreezing"
        unfreeze: Literal["schedule", "plateau"] = Field(
            "schedule",
            description="schedule: one layer at a time, at equal steps of the budget, until `unfrozen_by`; plateau: "
            "one layer after each evaluation that does not improve on the best (raise training.eval_count)",
        )
        unfrozen_by: float = Field(
            0.5, ge=0, lt=1, description="fraction of the budget after which all layers train; unfrozen at equal steps"
        )
        discount: float = Field(
            2.6,
            ge=1,
            description="a layer's learning rate is that of the layer above divided by this; ULMFiT used 2.6 for the "
            "four groups of its LSTM. In a Transformer of 12 layers, 2.6 leaves the lowest 1e-5 of the rate: 1.1 to "
            "1.3 is usual",
        )
        lr_scheduler_type: Literal["slanted_triangular", "linear", "cosine", "constant", "trapezoid"] | None = Field(
            "slanted_triangular", description="replaces training.lr_scheduler_type; null keeps it"
        )
        warmup_ratio: float | None = Field(
            0.1, ge=0, lt=1, description="replaces training.warmup_ratio; ULMFiT's cut_frac is 0.1"
        )

    def __init__(self, config: Config | None = None) -> None:
        """Store the config."""
        self.config = config or GradualUnfreezing.Config()

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint with a new head; the groups' start times freeze the layers."""
        return load(source, self.config.reinit_layers)

    def groups(self, model: PreTrainedModel) -> list[ParameterGroup]:
        """Return one group per level, the head first, each with its learning rate factor and its start."""
        stages = levels_from_top(model)
        pause = self.config.unfrozen_by / max(len(stages) - 1, 1)
        by_plateau = self.config.unfreeze == "plateau"
        return [
            ParameterGroup(
                names,
                lr_scale=self.config.discount**-i,
                starts=0.0 if by_plateau else pause * i,
                plateaus=i if by_plateau else 0,
            )
            for i, names in enumerate(stages)
        ]
