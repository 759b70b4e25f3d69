"""Shared parts of prompt and prefix tuning: virtual tokens before each text of a frozen network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from headstart.adaptation.base import AdaptationSettings
from headstart.adaptation.peft_base import PeftAdaptation
from headstart.checkpoint.input_length import learned_positions
from headstart.core.contracts import ModelSource, Task
from headstart.core.data import Batch, ParameterGroup, Sample
from headstart.core.errors import RecipeError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TASK_TYPES = {
    "AutoModel": "FEATURE_EXTRACTION",
    "AutoModelForSequenceClassification": "SEQ_CLS",
    "AutoModelForTokenClassification": "TOKEN_CLS",
    "AutoModelForQuestionAnswering": "QUESTION_ANS",
    "AutoModelForCausalLM": "CAUSAL_LM",
    "AutoModelForSeq2SeqLM": "SEQ_2_SEQ_LM",
}
"""The transformers heads for which peft supports virtual tokens, and peft's task types for them."""

_HEAD_LR = 1e-2
"""The maximum learning rate of a new head: virtual tokens need rates at which a weight matrix would diverge."""


class VirtualTokenSettings(AdaptationSettings):
    """The number of virtual tokens."""

    tokens: int = Field(20, ge=1, description="number of virtual tokens before each text; each takes a position")


class VirtualTokens(PeftAdaptation):
    """Base class of methods that freeze the network and train virtual tokens before each text."""

    _max_positions: int | None = None

    def supports(self, task: Task, family: str) -> str | None:
        """Reject heads for which peft has no virtual tokens."""
        head = task.auto_class(family)
        if head not in TASK_TYPES:
            return f"peft does not support virtual tokens for {head}"
        if family == "encoder-decoder" and head != "AutoModelForSeq2SeqLM":
            return "for encoder-decoders, peft supports virtual tokens with AutoModelForSeq2SeqLM only"
        return super().supports(task, family)

    def shared(self, model: PreTrainedModel, source: ModelSource) -> dict[str, Any]:
        """Return the shared keywords; heads are given by their outermost modules, because peft adds those itself."""
        body = f"{model.base_model_prefix}."
        head = super().shared(model, source)["modules_to_save"] or []
        outermost = {name if name.startswith(body) else name.partition(".")[0] for name in head}
        task_type = TASK_TYPES[source.task.auto_class(source.family)]
        return {"modules_to_save": sorted(outermost) or None, "task_type": task_type}

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint and add virtual tokens; all other parameters but a new head's are frozen."""
        model = super().adapt(source)
        for name, parameter in model.base_model.named_parameters():
            # peft freezes submodules only, and would miss a parameter of the network itself (XLNet's mask_emb).
            parameter.requires_grad_(".modules_to_save." in name)
        self._max_positions = learned_positions(model)
        return self.add_hooks(model)

    def add_hooks(self, model: PreTrainedModel) -> PreTrainedModel:
        """Register the hooks that tasks need, and return the model."""
        return model

    def reopen(self, source: ModelSource, folder: Path) -> PreTrainedModel:
        """Load the checkpoint and the adapter, with the hooks of training."""
        return self.add_hooks(super().reopen(source, folder))

    def groups(self, model: PreTrainedModel) -> list[ParameterGroup]:
        """Return a group for the virtual tokens, and one for the head with a lower learning rate."""
        (names,) = (group.names for group in super().groups(model))
        virtual = tuple(name for name in names if name.startswith("prompt_encoder."))
        head = tuple(name for name in names if name not in virtual)
        scale = min(1.0, _HEAD_LR / (self.config.learning_rate or _HEAD_LR))
        return [ParameterGroup(virtual), *([ParameterGroup(head, scale)] if head else [])]

    def extend(self, batch: Batch, samples: Sequence[Sample]) -> Batch:
        """Return the batch; raises if its texts and the virtual tokens exceed the network's positions."""
        length = batch["input_ids"].shape[-1]
        if self._max_positions is not None and length + self.config.tokens > self._max_positions:
            raise RecipeError(
                f"a text of {length} tokens and {self.config.tokens} virtual tokens take "
                f"{length + self.config.tokens} positions",
                allowed=f"The network has {self._max_positions} positions",
                do="Lower training.max_length or adaptation.tokens",
            )
        return batch
