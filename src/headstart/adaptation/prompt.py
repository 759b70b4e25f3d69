"""Prompt tuning: learn a few embeddings that are read before each text."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from headstart.adaptation.virtual_tokens import TASK_TYPES, VirtualTokens, VirtualTokenSettings
from headstart.core.contracts import Task
from headstart.core.lazy import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

if TYPE_CHECKING:
    from peft import PromptTuningConfig


READS_TEXT = {"headstart": "the head reads [CLS] of the text"}
"""The mark of an adapter whose head reads [CLS] of the text, in a field of its config that peft leaves alone.

An adapter without it is of an earlier version, and its head reads the first virtual token.
"""


class PromptTuning(VirtualTokens):
    """Prompt tuning: freeze the model and train virtual token embeddings that are read before each text."""

    paper: ClassVar[str] = "Lester et al. 2021, prompt tuning"

    class Config(VirtualTokenSettings):
        """The number of embeddings, and their initialization."""

        name: Literal["prompt"] = "prompt"
        learning_rate: float | None = Field(
            3e-2, gt=0, le=1, description="replaces training.learning_rate; Lester et al. used 0.3 on T5"
        )
        text: str | None = Field(
            None, description="a text with whose embeddings they are initialized; default: those of random tokens"
        )

    def __init__(self, config: Config | None = None) -> None:
        """Store the config."""
        self.config = config or PromptTuning.Config()

    def supports(self, task: Task, family: str) -> str | None:
        """Reject decoder classifiers, which would read a padding position."""
        if family == "decoder" and TASK_TYPES.get(task.auto_class(family)) == "SEQ_CLS":
            return "a decoder's classifier finds the last token by its id, but peft passes embeddings"
        return super().supports(task, family)

    def peft_config(self, model: PreTrainedModel, shared: dict[str, Any]) -> PromptTuningConfig:
        """Return peft's prompt tuning config, with the width of the input embeddings (ALBERT's are narrow)."""
        from peft import PromptTuningConfig

        initialization: dict[str, Any] = {"prompt_tuning_init": "SAMPLE_VOCAB"}
        if self.config.text:
            initialization = {"prompt_tuning_init": "TEXT", "prompt_tuning_init_text": self.config.text}
            initialization["tokenizer_name_or_path"] = str(model.name_or_path)
        if reads_first_position(model, shared["task_type"]):
            initialization["auto_mapping"] = READS_TEXT
        embeddings: Any = model.get_input_embeddings()
        # One submodule: peft would create a second set of tokens for a decoder and never read it.
        return PromptTuningConfig(
            num_virtual_tokens=self.config.tokens,
            token_dim=embeddings.weight.shape[1],
            num_transformer_submodules=1,
            **initialization,
            **shared,
        )

    def add_hooks(self, model: PreTrainedModel) -> PreTrainedModel:
        """Register a hook that removes the virtual tokens from outputs, or from what a classifier of texts reads."""
        wrapped: Any = model
        config = wrapped.active_peft_config
        if config.task_type not in ("SEQ_CLS", "SEQ_2_SEQ_LM"):
            model.register_forward_hook(_remove_virtual_tokens, with_kwargs=True)
        elif config.auto_mapping == READS_TEXT:
            body = wrapped.get_base_model().base_model
            body.register_forward_hook(partial(_read_text, config.num_virtual_tokens), with_kwargs=True)
        return model


def reads_first_position(model: PreTrainedModel, task_type: str) -> bool:
    """Return whether the head classifies texts by the first position; ModernBERT's may average all positions."""
    return task_type == "SEQ_CLS" and getattr(model.config, "classifier_pooling", "cls") == "cls"


def _read_text(tokens: int, body: Any, _: Any, inputs: dict[str, Any], output: Any) -> Any:
    """Cut the virtual positions off the states of a body, so that its head reads [CLS] of the text."""
    from headstart.adaptation.on_top import output_with_states

    if inputs.get("inputs_embeds") is None:  # the adapter is disabled
        return output
    for name, value in output_with_states(body, type(output), output.last_hidden_state[:, tokens:]).items():
        output[name] = value
    return output


def _remove_virtual_tokens(model: Any, _: Any, inputs: dict[str, Any], output: Any) -> Any:
    """Cut the virtual positions off every output that includes them."""
    tokens, length = model.active_peft_config.num_virtual_tokens, inputs["input_ids"].shape[1]
    for name, value in output.items():
        if isinstance(value, torch.Tensor) and value.ndim > 1 and value.shape[1] == tokens + length:
            output[name] = value[:, tokens:]
    return output
