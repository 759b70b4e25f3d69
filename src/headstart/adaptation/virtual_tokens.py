"""What prompts and prefixes share: learnt vectors that stand before a text, in a network that stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from transformers import PreTrainedModel

from headstart.adaptation.base import AdaptationSettings
from headstart.adaptation.peft_base import PeftAdaptation
from headstart.core.contracts import ModelSource, Task
from headstart.core.data import Batch, ParameterGroup, Sample
from headstart.core.errors import RecipeError

TASK_TYPES = {
    "AutoModel": "FEATURE_EXTRACTION",
    "AutoModelForSequenceClassification": "SEQ_CLS",
    "AutoModelForTokenClassification": "TOKEN_CLS",
    "AutoModelForQuestionAnswering": "QUESTION_ANS",
    "AutoModelForCausalLM": "CAUSAL_LM",
    "AutoModelForSeq2SeqLM": "SEQ_2_SEQ_LM",
}
"""The heads of transformers that peft can put virtual tokens before, and its names for them."""

_POSITIONS = ("position_embeddings", "wpe", "embed_positions")
"""Learned positions, of which a network has so many and no more."""

_HEAD_RATE = 1e-2
"""A new head's learning rate at most: prompts want rates at which a matrix would run away."""


class VirtualTokenSettings(AdaptationSettings):
    """How many vectors stand before a text."""

    tokens: int = Field(20, ge=1, description="virtual tokens before each text; each takes a position of the network's")


class VirtualTokens(PeftAdaptation):
    """A method that freezes the network and learns what stands before a text."""

    _room: int | None = None

    def supports(self, task: Task, family: str) -> str | None:
        """Refuse heads that peft cannot put virtual tokens before."""
        head = task.auto_class(family)
        if head not in TASK_TYPES:
            return f"peft knows no virtual tokens for {head}"
        if family == "encoder-decoder" and head != "AutoModelForSeq2SeqLM":
            return "of encoder-decoders, peft can put virtual tokens before AutoModelForSeq2SeqLM alone"
        return super().supports(task, family)

    def shared(self, model: PreTrainedModel, source: ModelSource) -> dict[str, Any]:
        """Return the keywords; a head is named by its outermost module, as peft itself adds some to what it is told."""
        body = f"{model.base_model_prefix}."
        head = super().shared(model, source)["modules_to_save"] or []
        outermost = {name if name.startswith(body) else name.partition(".")[0] for name in head}
        task_type = TASK_TYPES[source.task.auto_class(source.family)]
        return {"modules_to_save": sorted(outermost) or None, "task_type": task_type}

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint and let peft put virtual tokens before its texts; all else but a new head is frozen."""
        model = super().adapt(source)
        for name, parameter in model.base_model.named_parameters():
            # peft freezes submodules, and would leave a parameter of the network's own (XLNet's mask_emb).
            parameter.requires_grad_(".modules_to_save." in name)
        self._room = _positions(model)
        return self.dress(model)

    def dress(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return the model as tasks expect it."""
        return model

    def reopen(self, source: ModelSource, folder: Path) -> PreTrainedModel:
        """Load the checkpoint and the adapter, and dress them as for training."""
        return self.dress(super().reopen(source, folder))

    def groups(self, model: PreTrainedModel) -> list[ParameterGroup]:
        """Return the virtual tokens, and the head at a lower rate."""
        (names,) = (group.names for group in super().groups(model))
        virtual = tuple(name for name in names if name.startswith("prompt_encoder."))
        head = tuple(name for name in names if name not in virtual)
        scale = min(1.0, _HEAD_RATE / (self.config.learning_rate or _HEAD_RATE))
        return [ParameterGroup(virtual), *([ParameterGroup(head, scale)] if head else [])]

    def extend(self, batch: Batch, samples: Sequence[Sample]) -> Batch:
        """Return the batch, if its texts and the virtual tokens find room in the network."""
        length = batch["input_ids"].shape[-1]
        if self._room is not None and length + self.config.tokens > self._room:
            raise RecipeError(
                f"a text of {length} tokens and {self.config.tokens} virtual ones do not fit",
                allowed=f"The network has {self._room} positions",
                do="Lower training.max_length or adaptation.tokens",
            )
        return batch


def _positions(model: torch.nn.Module) -> int | None:
    """Return how many tokens a network with learned positions can read; None where positions are worked out."""
    rooms = []
    for name, table in model.named_modules():
        if name.endswith(_POSITIONS) and isinstance(table, torch.nn.Embedding):
            # RoBERTa counts from the padding's id on, BART from 2.
            first = int(getattr(table, "offset", 0)) if table.padding_idx is None else table.padding_idx + 1
            rooms.append(table.num_embeddings - first)
    return min(rooms, default=None)
