"""Several tasks as the training loop sees them: one learner, whose batches have rows of all tasks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch

from headstart.core.data import Batch, MixtureComponent, ParameterGroup, Sample
from headstart.stages.finetune.learner import TaskLearner
from headstart.stages.multitask.sharing import share
from headstart.training.module import LossModule

_ROWS = "rows"
_COUNTED = 256
"""Training rows of a task on which its predictions per row are counted."""


class _Losses:
    """The loss of a batch over several tasks."""

    same_passes = False
    """A process may have no row of some task in its part of a batch."""

    def __init__(self, learners: Mapping[str, TaskLearner], factors: Mapping[str, float]) -> None:
        self.learners, self.factors = learners, factors

    def loss(self, models: torch.nn.ModuleDict, batch: Batch) -> torch.Tensor:
        """Return the sum of the tasks' losses, each times its factor."""
        losses = [
            self.factors[name] * self.learners[name].module.method.loss(models[name], part)
            for name, part in _parts(batch).items()
        ]
        return torch.stack(losses).sum()

    def measure(self, models: torch.nn.ModuleDict, batch: Batch) -> dict[str, float]:
        """Return the summed loss as a metric."""
        return {"loss": float(self.loss(models, batch))}


class MultitaskLearner:
    """The `Learner` of several tasks whose networks share a body.

    A batch has rows of all tasks in proportion to their shares. Where each task has a head, the rows of a task pass
    through its network, and the loss of a row is the mean over its predictions, times the weight of the task: tasks
    that label words do not outweigh those that label texts. Without heads (text to text), all rows pass through the
    network at once, and the loss is the mean over their tokens, as in T5.
    """

    def __init__(
        self, learners: Mapping[str, TaskLearner], shares: Mapping[str, float], weights: Mapping[str, float],
        one_head: bool,
    ) -> None:  # fmt: skip
        """Join the learners of the tasks, whose networks share their parameters afterwards.

        Args:
            learners: the learner of each task alone.
            shares: the fraction of all rows that each task receives.
            weights: the factor on each task's loss.
            one_head: the networks are one and the same, without heads of the tasks.
        """
        self.learners, self.names, self.shares, self.one_head = learners, list(learners), shares, one_head
        models = {name: learner.model for name, learner in learners.items()}
        share(models, whole=one_head)
        self.model = torch.nn.ModuleDict(models)
        factors = {name: weights[name] / _predictions_per_row(learner) for name, learner in learners.items()}
        if one_head:
            factors = dict.fromkeys(self.names, 1.0)
        self.module = LossModule(self.model, _Losses(learners, factors))
        self.parts: Sequence[MixtureComponent] = [
            MixtureComponent(len(learner), shares[name]) for name, learner in learners.items()
        ]
        self._ends = list(accumulate(part.size for part in self.parts))
        self.lengths = [length for learner in learners.values() for length in learner.lengths]

    def __len__(self) -> int:
        return self._ends[-1]

    def batch(self, samples: Sequence[Sample]) -> Batch:
        """Collate the rows of each task; the names of its tensors begin with the name of the task."""
        by_task: dict[str, list[Sample]] = {}
        for sample in samples:
            i = bisect_right(self._ends, sample.index)
            own = Sample(sample.epoch, sample.index - (self._ends[i - 1] if i else 0))
            by_task.setdefault(self.names[i], []).append(own)
        if self.one_head:
            name = self.names[0]
            first = self.learners[name]
            features = [self.learners[task].train[own.index] for task, rows in by_task.items() for own in rows]
            batch = first.adaptation.extend(first.task.collate(features, first.spec), samples)
            return _named(name, batch, len(features))
        return {
            key: tensor
            for name in self.names
            if name in by_task
            for key, tensor in _named(name, self.learners[name].batch(by_task[name]), len(by_task[name])).items()
        }

    def weight(self, batch: Batch) -> float:
        """Return the number of rows, or of the target's tokens without heads."""
        if self.one_head:
            return sum(self.learners[name].weight(part) for name, part in _parts(batch).items())
        return sum(float(tensor) for key, tensor in batch.items() if key.endswith(f"/{_ROWS}"))

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens that the networks read in a batch."""
        return sum(self.learners[name].tokens(part) for name, part in _parts(batch).items())

    def parameter_groups(self) -> list[ParameterGroup]:
        """Return the parameter groups of all tasks; a shared parameter is in that of the first task that trains it."""
        trained = {name for name, _ in self.module.named_parameters()}
        groups = []
        for task, learner in self.learners.items():
            for group in learner.adaptation.groups(learner.model):
                names = tuple(full for name in group.names if (full := f"model.{task}.{name}") in trained)
                if names:
                    groups.append(ParameterGroup(names, group.lr_scale, group.starts, group.plateaus))
        return groups

    def solve(self) -> None:
        """Fit what the losses do not train."""
        for learner in self.learners.values():
            learner.solve()

    def validate(self) -> dict[str, float]:
        """Score the validation rows of each task; the mean of their selection metrics selects the best weights."""
        scores = {name: learner.validate() for name, learner in self.learners.items()}
        mean = sum(next(iter(own.values())) for own in scores.values()) / len(scores)
        return {"mean": mean} | {
            f"{name}/{metric}": value for name, own in scores.items() for metric, value in own.items()
        }


def scores_of(task: str, validation: Mapping[str, float]) -> dict[str, float]:
    """Return the scores of one task among those that `MultitaskLearner.validate` returned."""
    prefix = f"{task}/"
    return {name.removeprefix(prefix): value for name, value in validation.items() if name.startswith(prefix)}


def _named(task: str, batch: Batch, rows: int) -> Batch:
    return {f"{task}/{key}": tensor for key, tensor in {**batch, _ROWS: torch.tensor(rows)}.items()}


def _parts(batch: Batch) -> dict[str, Batch]:
    """Return the batch of each task."""
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in batch.items():
        task, _, name = key.partition("/")
        if name != _ROWS:
            parts.setdefault(task, {})[name] = tensor
    return dict(parts)


def _predictions_per_row(learner: TaskLearner) -> float:
    """Return the mean number of predictions in a training row, from evenly spaced rows."""
    rows = min(_COUNTED, len(learner))
    samples = [Sample(0, i * len(learner) // rows) for i in range(rows)]
    return max(learner.weight(learner.batch(samples)) / rows, 1e-9)
