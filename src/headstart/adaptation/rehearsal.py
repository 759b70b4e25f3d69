"""Rehearsal: continue pre-training alongside the task, to reduce forgetting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.core.contracts import ModelSource, ReplaySource, Task
from headstart.core.data import Batch, Sample
from headstart.core.lazy import torch
from headstart.core.randomness import integer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_KEY = "rehearsal/"


class Rehearsal(BaseAdaptation):
    """Rehearsal: fine-tune all parameters and continue pre-training on some rows of the pre-training text."""

    paper: ClassVar[str] = (
        "Robins 1995, Catastrophic Forgetting, Rehearsal and Pseudorehearsal; He et al. 2021, mix-review"
    )
    needs_whole_weights: ClassVar[str] = "runs its body in a second network, in some batches only"

    class Config(AdaptationSettings):
        """The amount and the weight of the pre-training rows."""

        name: Literal["rehearsal"] = "rehearsal"
        share: float = Field(
            0.2, gt=0, le=1, description="rows of pre-training text per labeled row; 0.2 adds one for every fifth row"
        )
        weight: float = Field(1.0, gt=0, description="weight of a pre-training row in the loss; a labeled row has 1")

    def __init__(self, config: Config | None = None) -> None:
        """Store the config; `adapt` opens the pre-training."""
        self.config = config or Rehearsal.Config()
        self._replay: ReplaySource | None = None
        self._network: torch.nn.Module | None = None

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint with the task's head, and with the pre-training head on the same body."""
        model = source.pretrained()
        self._replay = source.rehearsal()
        self._network = self._replay.network(model)
        # The pre-training head is frozen: the body must keep serving it, and the run's checkpoints do not contain it.
        shared = {id(parameter) for parameter in model.parameters()}
        for parameter in self._network.parameters():
            parameter.requires_grad_(id(parameter) in shared)
        return model

    def extend(self, batch: Batch, samples: Sequence[Sample]) -> Batch:
        """Add a corrupted row of pre-training text for each selected sample; the selection depends on its identity."""
        drawn = [s for s in samples if integer(0, s.epoch, s.index, "rehearse") % 10**6 < self.config.share * 10**6]
        if not drawn:
            return batch
        assert self._replay is not None, "call `adapt` first"
        rows = {f"{_KEY}{name}": tensor for name, tensor in self._replay.batch(drawn).items()}
        return {**batch, **rows, f"{_KEY}drawn": torch.tensor([len(drawn) / len(samples)])}

    def loss(self, task: Task, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the task's loss plus the mean pre-training loss, once per pre-training row."""
        assert self._replay is not None and self._network is not None, "call `adapt` first"
        # The head moves to the body's device before any graph holds its parameters.
        network = self._network.to(model.device).train(model.training)
        task_loss = task.loss(model, {name: tensor for name, tensor in batch.items() if not name.startswith(_KEY)})
        replayed = {name.removeprefix(_KEY): tensor for name, tensor in batch.items() if name.startswith(_KEY)}
        if not replayed:
            return task_loss
        fraction = float(replayed.pop("drawn"))
        mean = self._replay.loss(network, replayed) / max(self._replay.weight(replayed), 1.0)
        return task_loss + self.config.weight * fraction * task.weight(batch) * mean
