"""A guard against forgetting: pre-training goes on beside the task, on a share of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from transformers import PreTrainedModel

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.core.contracts import ModelSource, ReplaySource, Task
from headstart.core.data import Batch, Sample
from headstart.core.randomness import integer

_KEY = "rehearsal/"


class Rehearse(BaseAdaptation):
    """Fine-tune every parameter, and go on with pre-training on rows of its text beside some of the labelled ones."""

    paper: ClassVar[str] = (
        "Robins 1995, Catastrophic Forgetting, Rehearsal and Pseudorehearsal; He et al. 2021, mix-review"
    )

    class Config(AdaptationSettings):
        """How much is rehearsed."""

        name: Literal["rehearsal"] = "rehearsal"
        share: float = Field(
            0.2, gt=0, le=1, description="labelled rows that bring a row of the pre-training text along"
        )
        weight: float = Field(1.0, gt=0, description="what such a row weighs in the loss, a labelled one being 1")

    def __init__(self, config: Config | None = None) -> None:
        """Remember the section of the recipe; pre-training is opened when training begins."""
        self.config = config or Rehearse.Config()
        self._rehearsal: ReplaySource | None = None
        self._network: torch.nn.Module | None = None

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint twice: for the task, and as it was pre-trained, both over one body."""
        model = source.pretrained()
        self._rehearsal = source.rehearsal()
        self._network = self._rehearsal.network(model)
        # The old head stays: it is what the body must not forget to serve, and no checkpoint of the run holds it.
        shared = {id(parameter) for parameter in model.parameters()}
        for parameter in self._network.parameters():
            parameter.requires_grad_(id(parameter) in shared)
        return model

    def extend(self, batch: Batch, samples: Sequence[Sample]) -> Batch:
        """Add a corrupted row of the pre-training text for each sample that is drawn, by its identity."""
        drawn = [s for s in samples if integer(0, s.epoch, s.index, "rehearse") % 10**6 < self.config.share * 10**6]
        if not drawn:
            return batch
        assert self._rehearsal is not None, "adapt comes first"
        rows = {f"{_KEY}{name}": tensor for name, tensor in self._rehearsal.batch(drawn).items()}
        return {**batch, **rows, f"{_KEY}drawn": torch.tensor([len(drawn) / len(samples)])}

    def loss(self, task: Task, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the task's loss and the mean loss of pre-training, as often as there are rows of it."""
        own = task.loss(model, {name: tensor for name, tensor in batch.items() if not name.startswith(_KEY)})
        old = {name.removeprefix(_KEY): tensor for name, tensor in batch.items() if name.startswith(_KEY)}
        if not old:
            return own
        assert self._rehearsal is not None and self._network is not None, "adapt comes first"
        share = float(old.pop("drawn"))
        network = self._network.to(own.device).train(model.training)
        mean = self._rehearsal.loss(network, old) / max(self._rehearsal.weight(old), 1.0)
        return own + self.config.weight * share * task.weight(batch) * mean
