"""Training from scratch: the same network without pre-training, as a control."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.core.contracts import ModelSource

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Scratch(BaseAdaptation):
    """Training from scratch: the same network with random weights, the control for pre-training."""

    paper: ClassVar[str] = "Peters et al. 2018, ELMo; Erhan et al. 2010"

    class Config(AdaptationSettings):
        """No further settings."""

        name: Literal["scratch"] = "scratch"

    def __init__(self, config: Config | None = None) -> None:
        """Store the config."""
        self.config = config or Scratch.Config()

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Build the network with new weights; only the tokenizer comes from pre-training."""
        return source.fresh()
