"""Full fine-tuning: every parameter moves."""

from __future__ import annotations

from typing import ClassVar, Literal

from transformers import PreTrainedModel

from headstart.adaptation.base import BaseAdaptation
from headstart.adaptation.layers import LayerSettings, load
from headstart.core.contracts import ModelSource


class Full(BaseAdaptation):
    """Fine-tune every parameter from the checkpoint's weights."""

    paper: ClassVar[str] = "Howard & Ruder 2018, ULMFiT; Radford et al. 2018, GPT; Devlin et al. 2019, BERT"

    class Config(LayerSettings):
        """Nothing of its own to set."""

        name: Literal["full"] = "full"

    def __init__(self, config: Config | None = None) -> None:
        """Remember the section of the recipe."""
        self.config = config or Full.Config()

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint with a new head; everything is trainable."""
        return load(source, self.config.reinit_layers)
