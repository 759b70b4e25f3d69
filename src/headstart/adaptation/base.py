"""What most adaptations share: one model whose trainable parameters move under the task's own loss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from pydantic import Field
from transformers import PreTrainedModel

from headstart.core.config import Section
from headstart.core.contracts import ModelSource, Task
from headstart.core.data import Batch, ParameterGroup, Sample


class AdaptationSettings(Section):
    """Settings that stand in for those of `training` when this adaptation runs: methods want different rates.

    A method may declare more of them here by their name in `training` (lr_scheduler_type, warmup_ratio, …), None being
    the recipe's own.
    """

    learning_rate: float | None = Field(None, gt=0, le=1, description="in place of training.learning_rate")
    budget: str | None = Field(None, description="in place of training.budget")


class BaseAdaptation:
    """The answers of an adaptation that trains what requires a gradient, by the task's loss; each may be given anew."""

    def supports(self, task: Task, family: str) -> str | None:
        """Refuse a task that has nothing to learn by."""
        return None if task.learns else "the task asks the model as it is, and has no loss to train by"

    def supports_kind(self, kind: str) -> str | None:
        """Take every kind of network."""
        return None

    def groups(self, model: PreTrainedModel) -> list[ParameterGroup]:
        """Return all that is trainable as one group."""
        return [ParameterGroup(tuple(name for name, p in model.named_parameters() if p.requires_grad))]

    def extend(self, batch: Batch, samples: Sequence[Sample]) -> Batch:
        """Return the batch as it is."""
        return batch

    def loss(self, task: Task, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the task's loss, summed over the batch's examples."""
        return task.loss(model, batch)

    def finish(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return the model as it is."""
        return model

    def reopen(self, source: ModelSource, folder: Path) -> PreTrainedModel:
        """Load the checkpoint and put peft's adapter, which lies in `folder`, on it."""
        from peft import PeftModel

        return PeftModel.from_pretrained(source.pretrained(), str(folder))  # type: ignore[return-value]
