"""The same network without pre-training: the control that shows what pre-training bought."""

from __future__ import annotations

from typing import ClassVar, Literal

from transformers import PreTrainedModel

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.core.contracts import ModelSource


class Scratch(BaseAdaptation):
    """Train the same network from new weights: the control for every claim about pre-training."""

    paper: ClassVar[str] = "Peters et al. 2018, ELMo; Erhan et al. 2010"

    class Config(AdaptationSettings):
        """Nothing of its own to set."""

        name: Literal["scratch"] = "scratch"

    def __init__(self, config: Config | None = None) -> None:
        """Remember the section of the recipe."""
        self.config = config or Scratch.Config()

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Build the network with new weights; the tokenizer alone comes from pre-training."""
        return source.fresh()
