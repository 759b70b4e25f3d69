"""L2-SP: regularize the weights toward the checkpoint, to reduce forgetting."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.core.contracts import ModelSource, Task
from headstart.core.data import Batch
from headstart.core.lazy import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class L2Start(BaseAdaptation):
    """L2-SP: fine-tune all parameters with an L2 penalty on their distance from the checkpoint."""

    paper: ClassVar[str] = "Li et al. 2018, Explicit Inductive Bias for Transfer Learning (L2-SP)"
    needs_whole_weights: ClassVar[str] = "compares all weights with those of the checkpoint in each step"

    class Config(AdaptationSettings):
        """The weights of the penalty."""

        name: Literal["l2_start"] = "l2_start"
        pull: float = Field(
            0.01, ge=0, description="α: weight of half the squared distance of pre-trained parameters from their start"
        )
        pull_new: float = Field(0.01, ge=0, description="β: weight of half the squared norm of the new parameters")
        weight_decay: float | None = Field(
            0.0, ge=0, le=1, description="replaces training.weight_decay, which would pull toward zero instead"
        )

    def __init__(self, config: Config | None = None) -> None:
        """Store the config; `adapt` stores the starting weights."""
        self.config = config or L2Start.Config()
        self._start: dict[str, torch.Tensor] = {}

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint with a new head, all parameters trainable, and keep a copy of its weights."""
        model = source.pretrained()
        new = source.new_parameters()
        self._start = {name: p.detach().clone() for name, p in model.named_parameters() if name not in new}
        return model

    def loss(self, task: Task, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the task's loss plus the penalty, once per prediction."""
        return task.loss(model, batch) + task.weight(batch) * self.penalty(model)

    def penalty(self, model: PreTrainedModel) -> torch.Tensor:
        """Return the weighted half squared distances from the start (from zero for new parameters)."""
        terms = []
        for name, parameter in model.named_parameters():
            start = self._start.get(name)
            if start is None:
                terms.append(self.config.pull_new / 2 * parameter.square().sum())
            else:
                start = self._start[name] = start.to(parameter.device)
                terms.append(self.config.pull / 2 * (parameter - start).square().sum())
        return torch.stack(terms).sum()
