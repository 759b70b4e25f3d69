"""Prefix tuning: every layer attends to a few learned keys and values before those of the text."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from headstart.adaptation.virtual_tokens import VirtualTokens, VirtualTokenSettings
from headstart.core.lazy import transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

if TYPE_CHECKING:
    from peft import PrefixTuningConfig


class PrefixTuning(VirtualTokens):
    """Prefix tuning: freeze the model and train keys and values that precede those of the text in every layer."""

    paper: ClassVar[str] = "Li & Liang 2021, prefix tuning; Liu et al. 2022, P-tuning v2"
    recomputable: ClassVar[bool] = False

    class Config(VirtualTokenSettings):
        """The length of the prefix, and its reparametrization."""

        name: Literal["prefix"] = "prefix"
        learning_rate: float | None = Field(
            1e-2, gt=0, le=1, description="replaces training.learning_rate; P-tuning v2 used 5e-3 to 1e-2"
        )
        projection: int = Field(
            0,
            ge=0,
            description="width of the MLP that computes the prefix in training; 0: no MLP; Li & Liang used 512",
        )

    def __init__(self, config: Config | None = None) -> None:
        """Store the config."""
        self.config = config or PrefixTuning.Config()

    def supports_kind(self, kind: str) -> str | None:
        """Reject model types without the argument `past_key_values`, through which peft passes the prefix."""
        name = transformers.models.auto.modeling_auto.MODEL_MAPPING_NAMES.get(kind, "")
        body = getattr(transformers, name if isinstance(name, str) else name[0], None)
        takes = body is not None and "past_key_values" in inspect.signature(body.forward).parameters
        return None if takes else f"{kind} has no past_key_values argument, which peft needs to pass the prefix"

    def peft_config(self, model: PreTrainedModel, shared: dict[str, Any]) -> PrefixTuningConfig:
        """Return peft's prefix tuning config; an encoder-decoder gets the prefix in its decoder only."""
        from peft import PrefixTuningConfig

        config: Any = model.config
        layers = (getattr(config, name, None) for name in ("num_decoder_layers", "decoder_layers", "num_hidden_layers"))
        # peft derives the width of the keys from the hidden size, from which T5's may differ.
        width = {"token_dim": config.num_heads * config.d_kv} if hasattr(config, "d_kv") else {}
        projection = self.config.projection
        return PrefixTuningConfig(
            num_virtual_tokens=self.config.tokens,
            num_layers=next(filter(None, layers)),
            prefix_projection=projection > 0,
            **({"encoder_hidden_size": projection} if projection else {}),
            **width,
            **shared,
        )
