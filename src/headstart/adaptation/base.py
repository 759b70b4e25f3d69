"""What most adaptations share: one model whose trainable parameters move under the task's own loss."""

from __future__ import annotations

import torch
from pydantic import Field
from transformers import PreTrainedModel

from headstart.core.config import Section
from headstart.core.contracts import Batch, ParameterGroup, Task


class AdaptationSettings(Section):
    """Settings that stand in for those of `training` when this adaptation runs: methods want different rates."""

    learning_rate: float | None = Field(None, gt=0, le=1, description="in place of training.learning_rate")
    budget: str | None = Field(None, description="in place of training.budget")


class BaseAdaptation:
    """The answers of an adaptation that trains what requires a gradient, by the task's loss; each may be given anew."""

    def groups(self, model: PreTrainedModel) -> list[ParameterGroup]:
        """Return all that is trainable as one group."""
        return [ParameterGroup(tuple(name for name, p in model.named_parameters() if p.requires_grad))]

    def loss(self, task: Task, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the task's loss, summed over the batch's examples."""
        return task.loss(model, batch)

    def finish(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return the model as it is."""
        return model
