"""BitFit: train only the biases.

This does not go through peft, which has no such method: biases are changed in place, nothing is wrapped, and the
result is a plain model that loads anywhere.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.core.contracts import ModelSource
from headstart.core.errors import RecipeError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SWITCHES = ("attention_bias", "mlp_bias", "norm_bias")
"""Config settings that add biases to ModernBERT, LLaMA and others, which are pre-trained without."""

_BIAS = re.compile(r"(?:^|_)bias(?:$|_)")
"""Matches the last part of a bias's name, including those of LSTMs (bias_ih_l0) and XLNet (r_w_bias)."""


class BitFit(BaseAdaptation):
    """BitFit: fine-tune only the biases; models that were pre-trained without biases get new ones, at zero."""

    paper: ClassVar[str] = "Ben Zaken et al. 2022, BitFit"

    class Config(AdaptationSettings):
        """Only the learning rate."""

        name: Literal["bitfit"] = "bitfit"
        learning_rate: float | None = Field(
            3e-3, gt=0, le=1, description="replaces training.learning_rate; Ben Zaken et al. tried 1e-4 to 1e-3"
        )

    def __init__(self, config: Config | None = None) -> None:
        """Store the config."""
        self.config = config or BitFit.Config()

    def supports_kind(self, kind: str) -> str | None:
        """Reject T5, which has no biases and no setting to add them."""
        return "it has no biases and no setting to add them" if kind in ("t5", "mt5", "umt5") else None

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint and freeze all parameters but the biases and the new ones."""
        model = source.pretrained()
        missing = [name for name in _SWITCHES if getattr(model.config, name, None) is False]
        if missing:
            config = copy.deepcopy(model.config)
            config.update(dict.fromkeys(missing, True))
            model = source.pretrained(config=config)
        new = source.new_parameters()
        biases = {name for name, _ in model.named_parameters() if _BIAS.search(name.rpartition(".")[2])}
        if not biases:
            raise RecipeError(
                f"{type(model).__name__} has no biases",
                allowed="bitfit trains only biases",
                do="Choose another adaptation, such as ia3, or another checkpoint",
            )
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in biases or name in new)
        return model
