"""Full fine-tuning: train all parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from headstart.adaptation.base import BaseAdaptation
from headstart.adaptation.layers import LayerSettings, load
from headstart.core.contracts import ModelSource

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Full(BaseAdaptation):
    """Full fine-tuning: train all parameters from the checkpoint's weights."""

    paper: ClassVar[str] = "Howard & Ruder 2018, ULMFiT; Radford et al. 2018, GPT; Devlin et al. 2019, BERT"

    class Config(LayerSettings):
        """No further settings."""

        name: Literal["full"] = "full"

    def __init__(self, config: Config | None = None) -> None:
        """Store the config."""
        self.config = config or Full.Config()

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint with a new head, all parameters trainable."""
        return load(source, self.config.reinit_layers)
