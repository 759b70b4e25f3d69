"""Bottleneck adapters: small trainable networks inside the frozen layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from headstart.adaptation.base import AdaptationSettings
from headstart.adaptation.peft_base import PeftAdaptation
from headstart.adaptation.targets import find

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headstart.adaptation.bottleneck import BottleneckConfig

_TARGETS = {"houlsby": ["attention_out", "ffn_out"], "pfeiffer": ["ffn_out"]}


class Adapters(PeftAdaptation):
    """Bottleneck adapters: freeze the model and train small bottleneck networks in each layer."""

    paper: ClassVar[str] = "Houlsby et al. 2019, adapters; Pfeiffer et al. 2021, AdapterFusion"

    class Config(AdaptationSettings):
        """The placement and the width of the adapters."""

        name: Literal["adapters"] = "adapters"
        learning_rate: float | None = Field(
            3e-3, gt=0, le=1, description="replaces training.learning_rate; Houlsby et al. tried 3e-5 to 3e-3"
        )
        placement: Literal["houlsby", "pfeiffer"] = Field(
            "pfeiffer",
            description="houlsby: after the attention and after the feed-forward block; pfeiffer: after the "
            "feed-forward block only",
        )
        reduction: int = Field(
            16, ge=1, description="hidden size divided by the bottleneck width; Pfeiffer et al. used 16"
        )
        activation: Literal["relu", "gelu", "silu", "tanh"] = "relu"

    def __init__(self, config: Config | None = None) -> None:
        """Store the config."""
        self.config = config or Adapters.Config()

    def supports_kind(self, kind: str) -> str | None:
        """Reject XLNet for houlsby: its attention has no output matrix to add an adapter after."""
        if kind == "xlnet" and self.config.placement == "houlsby":
            return "xlnet's attention has no output module for an adapter; use the pfeiffer placement"
        return super().supports_kind(kind)

    def peft_config(self, model: PreTrainedModel, shared: dict[str, Any]) -> BottleneckConfig:
        """Return the config of Headstart's bottleneck method, which is registered with peft."""
        from headstart.adaptation.bottleneck import BottleneckConfig

        return BottleneckConfig(
            target_modules=find(model, _TARGETS[self.config.placement]),
            reduction=self.config.reduction,
            activation=self.config.activation,
            **shared,
        )
