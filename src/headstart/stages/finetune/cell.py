"""One cell of a fine-tuning run: one adaptation, one seed, from checkpoint to test predictions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from headstart.adaptation.frozen import FrozenBody
from headstart.core.contracts import Adaptation, Task
from headstart.core.data import Batch, Examples, Feature, InputSpec, MixtureComponent, ParameterGroup, Sample
from headstart.evaluation import metrics
from headstart.evaluation.cost import CostConfig
from headstart.stages.pretrain.reopen import Pretraining
from headstart.stages.runs.flops import flops_per_token
from headstart.stages.runs.meter import RecordedMeter
from headstart.tasks.source import CheckpointFolder, unwrap_peft
from headstart.training import precision
from headstart.training.checkpoint import Progress
from headstart.training.compilation import choose_attention
from headstart.training.loop import Loop, TrainResult
from headstart.training.module import LossModule
from headstart.training.progress import tracking
from headstart.training.settings import TrainingSettings

_EVALUATION_BATCH = 64


@dataclass(frozen=True)
class Splits:
    """The labelled rows of one seed."""

    train: Examples
    validation: Examples
    test: Examples


@dataclass
class MethodResult:
    """What one run of one method gives: predictions, scores, cost."""

    method: str
    seed: int
    predictions: list[Any]
    test: dict[str, float]
    validation: dict[str, float] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


class AdaptedTask:
    """A task under an adaptation, as far as the loss goes."""

    def __init__(self, task: Task, adaptation: Adaptation) -> None:
        """Hold both."""
        self.task, self.adaptation = task, adaptation

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the summed loss that the adaptation makes of the task's."""
        return self.adaptation.loss(self.task, model, batch)


class TaskLearner:
    """Labelled rows under a task and an adaptation, as the loop sees them."""

    def __init__(
        self, model: PreTrainedModel, task: Task, adaptation: Adaptation, reading: InputSpec, train: Sequence[Feature],
        validation: Sequence[Feature], gold: Sequence[Any],
    ) -> None:  # fmt: skip
        """Bring model, task and encoded rows together; `gold` has one value for each example of `validation`."""
        self.model, self.module = model, LossModule(model, AdaptedTask(task, adaptation))
        self.task, self.adaptation, self.reading = task, adaptation, reading
        self.train, self.held_out, self.gold = train, validation, gold
        self.lengths = [task.length(feature) for feature in train]
        self.parts: Sequence[MixtureComponent] = ()

    def __len__(self) -> int:
        return len(self.train)

    def batch(self, samples: Sequence[Sample]) -> Batch:
        """Collate the features of some samples, and add what the adaptation needs besides."""
        batch = self.task.collate([self.train[sample.index] for sample in samples], self.reading)
        return self.adaptation.extend(batch, samples)

    def weight(self, batch: Batch) -> float:
        """Return the number of predictions."""
        return self.task.weight(batch)

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens read."""
        return self.task.tokens(batch)

    def parameter_groups(self) -> list[ParameterGroup]:
        """Return the adaptation's groups under the module's names."""
        groups = self.adaptation.groups(self.model)
        return [replace(group, names=tuple(f"model.{name}" for name in group.names)) for group in groups]

    def validate(self) -> dict[str, float]:
        """Score the validation rows, the value to select by first: the higher the better."""
        predicted = predict(self.model, self.task, self.held_out, self.reading)
        return metrics.with_selection(self.task.metrics(), self.gold, predicted)


def predict(model: PreTrainedModel, task: Task, features: Sequence[Feature], reading: InputSpec) -> list[Any]:
    """Return one prediction per example in the order given; batches are made of like lengths."""
    device = next(model.parameters()).device
    order = sorted(range(len(features)), key=lambda i: task.length(features[i]))
    outputs: dict[int, Any] = {}
    model.eval()
    for start in range(0, len(order), _EVALUATION_BATCH):
        chosen = order[start : start + _EVALUATION_BATCH]
        batch = {name: t.to(device) for name, t in task.collate([features[i] for i in chosen], reading).items()}
        with torch.no_grad():
            outputs.update(zip(chosen, task.predict(model, batch), strict=True))
    return task.decode([outputs[i] for i in range(len(features))], features, reading)


def run_cell(
    *,
    method: str,
    adaptation: Adaptation,
    task: Task,
    splits: Splits,
    checkpoint: str,
    settings: TrainingSettings,
    batch_size: int,
    max_length: int,
    seed: int,
    work: Path,
    fingerprint: str,
    cost: CostConfig,
    quiet: bool,
) -> tuple[MethodResult, PreTrainedModel]:
    """Train one adaptation with one seed, keep its best weights by validation, and predict the test rows once."""
    with RecordedMeter(work / "cost.json", cost) as meter:
        work.mkdir(parents=True, exist_ok=True)
        source = CheckpointFolder(checkpoint, task, seed, Pretraining)
        reading = source.reading(max_length)
        task.show(splits.train, seed)
        train = task.encode(splits.train, reading, training=True) if task.learns else []
        validation, test = (task.encode(split, reading) for split in (splits.validation, splits.test))
        model = adaptation.adapt(source)
        task.prepare_head(model)
        choose_attention(model)
        learner = TaskLearner(model, task, adaptation, reading, train, validation, splits.validation.labels)
        if trainable(model):
            loop = loop_of(learner, settings, batch_size, seed, work, fingerprint)
            start = loop.restore().resumed_from
            with tracking(f"{method} seed {seed}", work / "logs", start, quiet) as trackers:
                outcome = loop.run([*trackers, meter])
        else:
            outcome = _untrained(learner, settings)
        flops = outcome.progress.flops + sum(body.flops for body in _frozen(model))
        details = {"trainable_parameters": trainable(model), "parameters": size(model)}
        model = adaptation.finish(model)
        with _autocast(model, settings):
            predictions = predict(model, task, test, reading)
    progress = outcome.progress
    # Told after the last record: progress counts what an earlier attempt did, which that record would add again.
    meter.tokens, meter.flops = progress.tokens, flops
    cell = MethodResult(
        method, seed, predictions,
        test=metrics.compute(task.metrics(), splits.test.labels, predictions),
        validation=outcome.validation,
        details=details | {
            "steps": progress.step, "best_step": progress.best_step, "learning_rate": settings.learning_rate,
            "train_rows": len(splits.train), "architecture": type(unwrap_peft(model)).__name__,
            "notes": task.notes(test),
        },
        cost=meter.tag().to_dict(),
    )  # fmt: skip
    return cell, model


def loop_of(
    learner: TaskLearner, settings: TrainingSettings, batch_size: int, seed: int, work: Path, fingerprint: str
) -> Loop:
    """Return the loop that trains a learner and keeps its best weights by validation; what a step costs is counted."""
    size = min(batch_size, len(learner))
    first = learner.batch([Sample(0, index) for index in range(size)])
    per_token = flops_per_token(learner.module, first, learner.tokens(first))
    for body in _frozen(learner.module):
        # It has read these texts now: the second step has the part on top alone to compute, as most steps will.
        remembered = flops_per_token(learner.module, first, learner.tokens(first))
        body.flops_per_token, per_token = per_token - remembered, remembered
    return Loop(
        learner, settings, batch_size=size, seed=seed, folder=work, fingerprint=fingerprint,
        flops_per_token=per_token, keep_best=True,
    )  # fmt: skip


def _frozen(model: torch.nn.Module) -> list[FrozenBody]:
    return [module for module in model.modules() if isinstance(module, FrozenBody)]


def trainable(model: torch.nn.Module) -> int:
    """Count the parameters that move."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def size(model: torch.nn.Module) -> int:
    """Count all parameters; a quantised matrix has as many as it stands for, however few numbers hold them."""
    states = [(p, getattr(p, "quant_state", None)) for p in model.parameters()]
    return sum(p.numel() if state is None else state.shape.numel() for p, state in states)


def _untrained(learner: TaskLearner, settings: TrainingSettings) -> TrainResult:
    """Measure a model of which nothing moves."""
    learner.module.to(precision.default_device())
    with _autocast(learner.model, settings):
        return TrainResult(Progress(), learner.validate())


def _autocast(model: PreTrainedModel, settings: TrainingSettings) -> AbstractContextManager[object]:
    device = next(model.parameters()).device
    return precision.autocast(precision.resolve(settings.precision, device), device)
