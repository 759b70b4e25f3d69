"""Prefix tuning: every layer attends to a few learnt keys and values before those of the text."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import transformers
from pydantic import Field
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from headstart.adaptation.virtual_tokens import VirtualTokens, VirtualTokenSettings

if TYPE_CHECKING:
    from peft import PrefixTuningConfig


class Prefix(VirtualTokens):
    """Freeze the network and learn keys and values that every layer finds before a text's own."""

    paper: ClassVar[str] = "Li & Liang 2021, prefix tuning; Liu et al. 2022, P-tuning v2"

    class Config(VirtualTokenSettings):
        """How many keys and values, and whether a small network makes them during training."""

        name: Literal["prefix"] = "prefix"
        learning_rate: float | None = Field(
            1e-2, gt=0, le=1, description="in place of training.learning_rate; P-tuning v2 used 5e-3 to 1e-2"
        )
        projection: int = Field(
            0, ge=0, description="width of a network that makes the prefix while it is trained; Li & Liang used 512"
        )

    def __init__(self, config: Config | None = None) -> None:
        """Remember the section of the recipe."""
        self.config = config or Prefix.Config()

    def supports_kind(self, kind: str) -> str | None:
        """Refuse networks that take no keys and values from outside, by which peft hands the prefix in."""
        name = MODEL_MAPPING_NAMES.get(kind, "")
        body = getattr(transformers, name if isinstance(name, str) else name[0], None)
        takes = body is not None and "past_key_values" in inspect.signature(body.forward).parameters
        return None if takes else f"{kind} takes no past_key_values, by which peft hands the prefix in"

    def method(self, model: PreTrainedModel, shared: dict[str, Any]) -> PrefixTuningConfig:
        """Return peft's prefix tuning; an encoder-decoder's prefix stands in the decoder alone."""
        from peft import PrefixTuningConfig

        config: Any = model.config
        layers = (getattr(config, name, None) for name in ("num_decoder_layers", "decoder_layers", "num_hidden_layers"))
        # peft takes the width of keys from that of states, from which T5's may differ.
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
