"""Bottleneck adapters: small trainable networks inside the frozen layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from headstart.adaptation.base import AdaptationSettings
from headstart.adaptation.peft_base import PeftAdaptation
from headstart.adaptation.targets import feed_forward_norms, find, norms_in_layers
from headstart.core.contracts import ModelSource

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headstart.adaptation.bottleneck import BottleneckConfig

_ACTIVATIONS = {"houlsby": "silu", "pfeiffer": "relu"}
"""The activations of AdapterHub's configs `double_seq_bn` (Houlsby) and `seq_bn` (Pfeiffer)."""


class Adapters(PeftAdaptation):
    """Bottleneck adapters: freeze the model and train small bottleneck networks in each layer.

    The placements are those of AdapterHub's published configs. With h the output of a block and x its residual:

    - pfeiffer (`seq_bn`), after the feed-forward block: norm(x + h + A(norm(x + h))), with the layer's own frozen norm.
      Where the norm is before the block, as in ModernBERT and Llama, it is x + h + A(x + h).
    - houlsby (`double_seq_bn`), after both blocks: norm(x + h + A(h)). Houlsby et al. train the layer norms too.
    """

    paper: ClassVar[str] = "Houlsby et al. 2019, adapters; Pfeiffer et al. 2021, AdapterFusion"

    class Config(AdaptationSettings):
        """The placement and the width of the adapters."""

        name: Literal["adapters"] = "adapters"
        learning_rate: float | None = Field(
            3e-3, gt=0, le=1, description="replaces training.learning_rate; Houlsby et al. tried 3e-5 to 3e-3"
        )
        placement: Literal["houlsby", "pfeiffer"] = Field(
            "pfeiffer",
            description="houlsby: after the attention and after the feed-forward block, with trained layer norms; "
            "pfeiffer: after the residual and the norm of the feed-forward block only",
        )
        reduction: int = Field(
            16, ge=1, description="hidden size divided by the bottleneck width; Pfeiffer et al. used 16"
        )
        activation: Literal["relu", "gelu", "silu", "tanh"] | None = Field(
            None, description="default: relu for pfeiffer, silu for houlsby, as in AdapterHub"
        )

    def __init__(self, config: Config | None = None) -> None:
        """Store the config."""
        self.config = config or Adapters.Config()

    def supports_kind(self, kind: str) -> str | None:
        """Reject XLNet for houlsby: its attention has no output matrix to add an adapter after."""
        if kind == "xlnet" and self.config.placement == "houlsby":
            return "xlnet's attention has no output module for an adapter; use the pfeiffer placement"
        return super().supports_kind(kind)

    def shared(self, model: PreTrainedModel, source: ModelSource) -> dict[str, Any]:
        """Return the shared keywords; for houlsby, the layer norms are trained with the head."""
        shared = super().shared(model, source)
        if self.config.placement == "houlsby":
            shared["modules_to_save"] = [*(shared["modules_to_save"] or []), *norms_in_layers(model)]
        return shared

    def peft_config(self, model: PreTrainedModel, shared: dict[str, Any]) -> BottleneckConfig:
        """Return the config of Headstart's bottleneck method, which is registered with peft."""
        from headstart.adaptation.bottleneck import BottleneckConfig

        if self.config.placement == "houlsby":
            placed: dict[str, Any] = {"target_modules": find(model, ["attention_out", "ffn_out"])}
        else:
            norms, is_after = feed_forward_norms(model)
            placed = (
                {"target_modules": list(norms.values()), "reads": "norm"}
                if is_after
                else {"target_modules": list(norms), "reads": "residual", "residual_norms": norms}
            )
        return BottleneckConfig(
            reduction=self.config.reduction,
            activation=self.config.activation or _ACTIVATIONS[self.config.placement],
            **placed,
            **shared,
        )
