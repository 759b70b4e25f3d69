"""Low-rank adaptation: learn the update of a frozen matrix as a product of two low-rank matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from headstart.adaptation.base import AdaptationSettings
from headstart.adaptation.peft_base import MergeSettings, PeftAdaptation
from headstart.adaptation.targets import PARTS, find
from headstart.core.lazy import transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

if TYPE_CHECKING:
    from peft import LoraConfig


class LoraSettings(AdaptationSettings):
    """The rank of the updates, and the matrices that get one."""

    learning_rate: float | None = Field(
        2e-3, gt=0, le=1, description="replaces training.learning_rate; Hu et al. used 5e-4 over far more steps"
    )
    rank: int = Field(4, ge=1, description="rank of the update matrices; Hu et al. found 1 to 8 enough")
    alpha: int = Field(8, ge=1, description="the update is scaled by alpha / rank")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="dropout on the input of the update matrices; QLoRA used 0.05 to 0.1"
    )
    targets: list[str] = Field(
        [*PARTS],
        min_length=1,
        description=f"the matrices to update: {', '.join(PARTS)}, or ends of module names; default: all, which "
        "matches full fine-tuning best (Dettmers et al. 2023); Hu et al. used query and value",
    )

    def to_peft(self, model: PreTrainedModel, shared: dict[str, Any]) -> LoraConfig:
        """Return peft's LoRA config for a loaded network."""
        from peft import LoraConfig

        names = find(model, self.targets)
        conv1d = transformers.pytorch_utils.Conv1D
        return LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=names,
            fan_in_fan_out=all(isinstance(model.get_submodule(name), conv1d) for name in names),
            **shared,
        )


class Lora(PeftAdaptation):
    """LoRA: freeze the model and train low-rank updates of its weight matrices."""

    paper: ClassVar[str] = "Hu et al. 2022, LoRA"

    class Config(LoraSettings, MergeSettings):
        """The settings of LoRA, and whether to merge."""

        name: Literal["lora"] = "lora"

    def __init__(self, config: Config | None = None) -> None:
        """Store the config."""
        self.config = config or Lora.Config()

    def peft_config(self, model: PreTrainedModel, shared: dict[str, Any]) -> LoraConfig:
        """Return peft's LoRA config for the target matrices."""
        return self.config.to_peft(model, shared)
