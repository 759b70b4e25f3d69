"""Prompt tuning: a few learnt vectors are read before each text, and the network stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field
from transformers import PreTrainedModel

from headstart.adaptation.virtual_tokens import TASK_TYPES, VirtualTokens, VirtualTokenSettings
from headstart.core.contracts import Task

if TYPE_CHECKING:
    from peft import PromptTuningConfig


class Prompt(VirtualTokens):
    """Freeze the network and learn embeddings that are read before each text."""

    paper: ClassVar[str] = "Lester et al. 2021, prompt tuning"

    class Config(VirtualTokenSettings):
        """How many embeddings, and how they start."""

        name: Literal["prompt"] = "prompt"
        learning_rate: float | None = Field(
            3e-2, gt=0, le=1, description="in place of training.learning_rate; Lester et al. used 0.3 on T5"
        )
        text: str | None = Field(
            None, description="a text whose embeddings they start from; unless set, those of tokens drawn by chance"
        )

    def __init__(self, config: Config | None = None) -> None:
        """Remember the section of the recipe."""
        self.config = config or Prompt.Config()

    def supports(self, task: Task, family: str) -> str | None:
        """Refuse a decoder's classifier, which would read padding."""
        if family == "decoder" and TASK_TYPES.get(task.auto_class(family)) == "SEQ_CLS":
            return (
                "a decoder's classifier finds a text's last token by its id, and reads padding where it is given none"
            )
        return super().supports(task, family)

    def method(self, model: PreTrainedModel, shared: dict[str, Any]) -> PromptTuningConfig:
        """Return peft's prompt tuning, with embeddings as wide as the network's own (ALBERT's are narrow)."""
        from peft import PromptTuningConfig

        start: dict[str, Any] = {"prompt_tuning_init": "SAMPLE_VOCAB"}
        if self.config.text:
            start = {"prompt_tuning_init": "TEXT", "prompt_tuning_init_text": self.config.text}
            start["tokenizer_name_or_path"] = str(model.name_or_path)
        embeddings: Any = model.get_input_embeddings()
        width = embeddings.weight.shape[1]
        # One set of tokens: peft would make a second one for a decoder and never read it.
        return PromptTuningConfig(
            num_virtual_tokens=self.config.tokens, token_dim=width, num_transformer_submodules=1, **start, **shared
        )

    def dress(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return the model with the virtual tokens' own outputs cut off, where it has one for each token."""
        wrapped: Any = model
        if wrapped.active_peft_config.task_type not in ("SEQ_CLS", "SEQ_2_SEQ_LM"):
            model.register_forward_hook(_only_the_text, with_kwargs=True)
        return model


def _only_the_text(model: Any, _: Any, inputs: dict[str, Any], output: Any) -> Any:
    """Cut the first positions off every output that has more of them than the text."""
    tokens, length = model.active_peft_config.num_virtual_tokens, inputs["input_ids"].shape[1]
    for name, value in output.items():
        if isinstance(value, torch.Tensor) and value.ndim > 1 and value.shape[1] == tokens + length:
            output[name] = value[:, tokens:]
    return output
