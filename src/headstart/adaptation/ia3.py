"""(IA)³: rescale keys, values and feed-forward activations with learned vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from headstart.adaptation.peft_base import MergeSettings, PeftAdaptation
from headstart.adaptation.targets import find
from headstart.core.lazy import transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

if TYPE_CHECKING:
    from peft import IA3Config


class IA3(PeftAdaptation):
    """(IA)³: freeze the model and train vectors that rescale keys, values and feed-forward activations."""

    paper: ClassVar[str] = "Liu et al. 2022, T-Few"

    class Config(MergeSettings):
        """The learning rate, and whether to merge."""

        name: Literal["ia3"] = "ia3"
        learning_rate: float | None = Field(
            1e-2, gt=0, le=1, description="replaces training.learning_rate; Liu et al. used 3e-3 for 1,000 steps"
        )

    def __init__(self, config: Config | None = None) -> None:
        """Store the config."""
        self.config = config or IA3.Config()

    def peft_config(self, model: PreTrainedModel, shared: dict[str, Any]) -> IA3Config:
        """Return peft's (IA)³ config; a fused query-key-value matrix is rescaled as a whole, queries included."""
        from peft import IA3Config

        names, feedforward = find(model, ["key", "value", "ffn_out"]), find(model, ["ffn_out"])
        conv1d = transformers.pytorch_utils.Conv1D
        return IA3Config(
            target_modules=names,
            feedforward_modules=feedforward,
            fan_in_fan_out=all(isinstance(model.get_submodule(name), conv1d) for name in names),
            **shared,
        )
