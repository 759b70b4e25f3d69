"""Shared parts of the adaptations: one model, trained with the task's loss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from headstart.checkpoint.load import load_adapter
from headstart.core.config import Section
from headstart.core.contracts import ModelSource, Task
from headstart.core.data import Batch, LabeledFeatures, ParameterGroup, Sample

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


class AdaptationSettings(Section):
    """Settings that replace those of `training` for this adaptation: methods need different learning rates.

    A method may declare further settings of `training` by their names (lr_scheduler_type, warmup_ratio, …); None keeps
    the value of `training`.
    """

    learning_rate: float | None = Field(None, gt=0, le=1, description="replaces training.learning_rate")
    budget: str | None = Field(None, description="replaces training.budget")


def labels_texts(task: Task, family: str) -> bool:
    """Return whether a task gives a whole text labels or a number; a score of each choice is neither."""
    has_classifier = task.auto_class(family) == "AutoModelForSequenceClassification"
    return has_classifier and "problem_type" in task.head_settings()


class BaseAdaptation:
    """Defaults for an adaptation that trains a model with the task's loss; subclasses override them."""

    recomputable: ClassVar[bool] = True
    """False if a layer does not compute the same again in the backward pass, as activation checkpointing needs."""
    needs_whole_weights: ClassVar[str] = ""
    """Why the method cannot be trained with sharded weights, as a clause with the method as its subject; or empty."""

    def supports(self, task: Task, family: str) -> str | None:
        """Reject tasks without a training loss."""
        return None if task.learns else "the task has no training loss"

    def supports_kind(self, kind: str) -> str | None:
        """Accept every model type."""
        return None

    def groups(self, model: PreTrainedModel) -> list[ParameterGroup]:
        """Return all trainable parameters as one group."""
        return [ParameterGroup(tuple(name for name, p in model.named_parameters() if p.requires_grad))]

    def extend(self, batch: Batch, samples: Sequence[Sample]) -> Batch:
        """Return the batch unchanged."""
        return batch

    def loss(self, task: Task, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the task's loss, summed over the batch's predictions."""
        return task.loss(model, batch)

    def solve(self, model: PreTrainedModel, task: Task, rows: LabeledFeatures) -> int:
        """Fit nothing: all parameters are trained by the loss."""
        return 0

    def finish(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return the model unchanged."""
        return model

    def reopen(self, source: ModelSource, folder: Path) -> PreTrainedModel:
        """Load the checkpoint, with the peft adapter in `folder`."""
        adapted: PreTrainedModel = load_adapter(source.pretrained(), folder)
        return adapted
