"""Bottleneck adapters: small networks between the frozen parts of each layer."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field
from transformers import PreTrainedModel

from headstart.adaptation.base import AdaptationSettings
from headstart.adaptation.bottleneck import BottleneckConfig
from headstart.adaptation.peft_base import PeftAdaptation
from headstart.adaptation.targets import find

_PLACES = {"houlsby": ["attention_out", "ffn_out"], "pfeiffer": ["ffn_out"]}


class Adapters(PeftAdaptation):
    """Freeze the network and learn narrow networks behind the parts of each layer."""

    paper: ClassVar[str] = "Houlsby et al. 2019, adapters; Pfeiffer et al. 2021, AdapterFusion"

    class Config(AdaptationSettings):
        """Where the adapters stand and how narrow they are."""

        name: Literal["adapters"] = "adapters"
        learning_rate: float | None = Field(
            3e-3, gt=0, le=1, description="in place of training.learning_rate; Houlsby et al. tried 3e-5 to 3e-3"
        )
        placement: Literal["houlsby", "pfeiffer"] = Field(
            "pfeiffer", description="houlsby: after attention and feed-forward part; pfeiffer: after the latter alone"
        )
        reduction: int = Field(16, ge=1, description="how many times narrower the middle is; Pfeiffer et al. used 16")
        activation: Literal["relu", "gelu", "silu", "tanh"] = "relu"

    def __init__(self, config: Config | None = None) -> None:
        """Remember the section of the recipe."""
        self.config = config or Adapters.Config()

    def supports_kind(self, kind: str) -> str | None:
        """Refuse what has no matrix behind its attention."""
        if kind == "xlnet" and self.config.placement == "houlsby":
            return "xlnet's attention ends in no module that an adapter could stand behind; pfeiffer's placement fits"
        return super().supports_kind(kind)

    def method(self, model: PreTrainedModel, shared: dict[str, Any]) -> BottleneckConfig:
        """Return our own method, which peft was told of when it was imported."""
        return BottleneckConfig(
            target_modules=find(model, _PLACES[self.config.placement]),
            reduction=self.config.reduction,
            activation=self.config.activation,
            **shared,
        )
