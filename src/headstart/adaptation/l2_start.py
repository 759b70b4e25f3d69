"""A guard against forgetting: weights are pulled back to where pre-training left them."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from transformers import PreTrainedModel

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.core.contracts import ModelSource, Task
from headstart.core.data import Batch


class L2Start(BaseAdaptation):
    """Fine-tune every parameter under a penalty on its squared distance from the checkpoint's (L2-SP)."""

    paper: ClassVar[str] = "Li et al. 2018, Explicit Inductive Bias for Transfer Learning (L2-SP)"

    class Config(AdaptationSettings):
        """How strong the pull is."""

        name: Literal["l2_start"] = "l2_start"
        pull: float = Field(
            0.01, ge=0, description="α: weight of half the squared distance from the start, over the checkpoint's part"
        )
        pull_new: float = Field(
            0.01, ge=0, description="β: weight of half the squared norm of what the checkpoint did not hold"
        )
        weight_decay: float | None = Field(
            0.0, ge=0, le=1, description="in place of training.weight_decay, which would pull towards nought instead"
        )

    def __init__(self, config: Config | None = None) -> None:
        """Remember the section of the recipe; the start is kept when training begins."""
        self.config = config or L2Start.Config()
        self._start: dict[str, torch.Tensor] = {}

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint with a new head, all of it trainable, and keep a copy of what it held."""
        model = source.pretrained()
        new = source.new_parameters()
        self._start = {name: p.detach().clone() for name, p in model.named_parameters() if name not in new}
        return model

    def loss(self, task: Task, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the task's loss and, for each prediction, the penalty."""
        return task.loss(model, batch) + task.weight(batch) * self.penalty(model)

    def penalty(self, model: PreTrainedModel) -> torch.Tensor:
        """Return half the squared distances from the start, and from nought for what is new, weighed."""
        terms = []
        for name, parameter in model.named_parameters():
            start = self._start.get(name)
            if start is None:
                terms.append(self.config.pull_new / 2 * parameter.square().sum())
            else:
                start = self._start[name] = start.to(parameter.device)
                terms.append(self.config.pull / 2 * (parameter - start).square().sum())
        return torch.stack(terms).sum()
