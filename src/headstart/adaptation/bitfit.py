"""BitFit: the biases move, and nothing else.

Plain, not through peft, which has no such method: a bias is changed in place, so there is nothing to wrap or to switch,
and the result is an ordinary model that loads anywhere.
"""

from __future__ import annotations

import copy
import re
from typing import ClassVar, Literal

from pydantic import Field
from transformers import PreTrainedModel

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.core.contracts import ModelSource
from headstart.core.errors import RecipeError

_SWITCHES = ("attention_bias", "mlp_bias", "norm_bias")
"""Settings by which ModernBERT, LLaMA and others, pre-trained without biases, can be given some."""

_BIAS = re.compile(r"(?:^|_)bias(?:$|_)")
"""How the last part of a bias's name looks, an LSTM's (bias_ih_l0) and XLNet's (r_w_bias) included."""


class BitFit(BaseAdaptation):
    """Fine-tune the biases alone; a network that can have some but has none is given them, at zero."""

    paper: ClassVar[str] = "Ben Zaken et al. 2022, BitFit"

    class Config(AdaptationSettings):
        """Nothing of its own to set but the rate."""

        name: Literal["bitfit"] = "bitfit"
        learning_rate: float | None = Field(
            3e-3, gt=0, le=1, description="in place of training.learning_rate; Ben Zaken et al. tried 1e-4 to 1e-3"
        )

    def __init__(self, config: Config | None = None) -> None:
        """Remember the section of the recipe."""
        self.config = config or BitFit.Config()

    def supports_kind(self, kind: str) -> str | None:
        """Refuse T5, which has no biases and no setting for them."""
        return "it has no biases, and cannot be given any" if kind in ("t5", "mt5", "umt5") else None

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint and freeze all but its biases and what it lacked."""
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
                allowed="bitfit trains the biases of a network",
                do="Choose another adaptation, such as ia3, or another checkpoint",
            )
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in biases or name in new)
        return model
