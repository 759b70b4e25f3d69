"""A task under an adaptation, as the training loop sees it, and predictions by a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from headstart.adaptation.frozen import FrozenBody
from headstart.core.contracts import Adaptation, Learner, Task
from headstart.core.data import (
    UNLABELED,
    Batch,
    Feature,
    InputSpec,
    LabeledFeatures,
    MixtureComponent,
    ParameterGroup,
    Sample,
)
from headstart.evaluation import metrics
from headstart.stages.runs.flops import flops_per_token
from headstart.training import precision
from headstart.training.batches import samples_by_share
from headstart.training.callbacks import Callback, default_callbacks
from headstart.training.freezing import Freezing
from headstart.training.loop import Loop, RunInfo
from headstart.training.module import LossModule
from headstart.training.phases import Phase
from headstart.training.settings import TrainingSettings
from headstart.training.world import World

_EVALUATION_BATCH = 64


class FittedLearner(Learner, Protocol):
    """A learner whose loss may leave something to be fitted otherwise, such as a linear head."""

    @property
    def model(self) -> torch.nn.Module:
        """The network, or the networks of several tasks."""
        ...

    def solve(self) -> None:
        """Fit what the loss does not train."""
        ...


class AdaptedTask:
    """Computes the loss of a task under an adaptation."""

    def __init__(self, task: Task, adaptation: Adaptation) -> None:
        """Keep both."""
        self.task, self.adaptation = task, adaptation

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the summed loss: the task's, as the adaptation changes it."""
        return self.adaptation.loss(self.task, model, batch)

    def measure(self, model: PreTrainedModel, batch: Batch) -> dict[str, float]:
        """Return the summed loss as a metric."""
        return {"loss": float(self.loss(model, batch))}


class TaskLearner:
    """The `Learner` of fine-tuning: encoded rows under a task and an adaptation."""

    def __init__(
        self, model: PreTrainedModel, task: Task, adaptation: Adaptation, spec: InputSpec, train: Sequence[Feature],
        validation: Sequence[Feature], gold: Sequence[Any], unlabeled: Sequence[Feature] = (),
    ) -> None:  # fmt: skip
        """Combine model, task and encoded rows.

        `gold` has one value for each validation example. The labels of `unlabeled` features are placeholders; batches
        mark these rows for the adaptation, whose loss must not read them.
        """
        self.model, self.module = model, LossModule(model, AdaptedTask(task, adaptation))
        self.task, self.adaptation, self.spec = task, adaptation, spec
        self.train, self.validation, self.gold, self.unlabeled = train, validation, gold, unlabeled
        self.lengths = [task.length(feature) for feature in (*train, *unlabeled)]
        self.parts: Sequence[MixtureComponent] = ()
        self.fitted_parameters = 0

    def __len__(self) -> int:
        return len(self.train) + len(self.unlabeled)

    def batch(self, samples: Sequence[Sample]) -> Batch:
        """Collate the features of the samples, with what the adaptation's loss needs besides."""
        labeled = len(self.train)
        features = [self.train[s.index] if s.index < labeled else self.unlabeled[s.index - labeled] for s in samples]
        batch = self.task.collate(features, self.spec)
        if self.unlabeled:
            batch = {**batch, UNLABELED: torch.tensor([sample.index >= labeled for sample in samples])}
        return self.adaptation.extend(batch, samples)

    def weight(self, batch: Batch) -> float:
        """Return the number of predictions in a batch."""
        return self.task.weight(batch)

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens that the model reads in a batch."""
        return self.task.tokens(batch)

    def parameter_groups(self) -> list[ParameterGroup]:
        """Return the adaptation's parameter groups, with the names that `module` gives the parameters."""
        groups = self.adaptation.groups(self.model)
        return [replace(group, names=tuple(f"model.{name}" for name in group.names)) for group in groups]

    def solve(self) -> None:
        """Fit what the loss does not train."""
        run = partial(run_model, self.model, self.task, spec=self.spec)
        rows = LabeledFeatures(self.train, self.validation, self.gold, self.spec, run)
        self.fitted_parameters = self.adaptation.solve(self.model, self.task, rows)

    def validate(self) -> dict[str, float]:
        """Score the validation rows; the first value selects the best weights (higher is better)."""
        self.solve()
        predict = partial(self.module.run, self.task.predict)
        outputs = run_model(self.model, self.task, self.validation, self.spec, predict)
        if self.task.has_decision:
            # Weights are compared by the decisions that will be made with them: by a tuned threshold, not by 0.5.
            chosen = self.task.fit_decision(outputs, self.gold)
            self.task.set_decision(chosen)
            outputs = [output / chosen.get("temperature", 1.0) for output in outputs]
        predictions = self.task.decode(outputs, self.validation, self.spec)
        return metrics.with_selection(self.task.metrics(), self.gold, predictions)


def predict(model: PreTrainedModel, task: Task, features: Sequence[Feature], spec: InputSpec) -> list[Any]:
    """Return one prediction per example, in the order of the examples."""
    return task.decode(run_model(model, task, features, spec), features, spec)


def run_model(
    model: PreTrainedModel, task: Task, features: Sequence[Feature], spec: InputSpec,
    predict: Callable[[Batch], Any] | None = None,
) -> list[Any]:  # fmt: skip
    """Return the model's raw output for each feature, in their order; batches group features of similar length.

    `predict` computes the outputs of a batch, by default with `task.predict`.
    """
    predict = predict or partial(task.predict, model)
    device = next(model.parameters()).device
    order = sorted(range(len(features)), key=lambda i: task.length(features[i]))
    outputs: dict[int, Any] = {}
    model.eval()
    for start in range(0, len(order), _EVALUATION_BATCH):
        indices = order[start : start + _EVALUATION_BATCH]
        batch = {name: t.to(device) for name, t in task.collate([features[i] for i in indices], spec).items()}
        with torch.no_grad():
            outputs.update(zip(indices, predict(batch), strict=True))
    return [outputs[i] for i in range(len(features))]


def build_loop(
    learner: FittedLearner, settings: TrainingSettings, batch_size: int, run: RunInfo,
    callbacks: Sequence[Callback] | None = None, world: World | None = None,
) -> Loop:  # fmt: skip
    """Return the loop that trains a learner; counts the FLOPs of a step.

    Without `callbacks`, it logs, evaluates, saves and keeps the best weights by validation.
    """
    # Before the first pass: a frozen body caches tensors on the device that computed them.
    learner.module.to(precision.default_device(settings.device))
    rows = min(batch_size, len(learner))
    samples = [Sample(0, index) for index in range(rows)]
    first = learner.batch(samples_by_share(0, rows, learner.parts, run.seed) if learner.parts else samples)
    per_token = flops_per_token(learner.module, first, learner.tokens(first))
    for body in frozen_bodies(learner.module):
        # The body has these texts in its cache now: a second step costs what most steps will cost.
        cached = flops_per_token(learner.module, first, learner.tokens(first))
        body.flops_per_token, per_token = per_token - cached, cached
    if callbacks is None:
        callbacks = default_callbacks(settings, keep_best=True)
    phase = Phase(0.0, learner, rows, per_token, _flops_by_stage(learner, first))
    return Loop(learner, settings, run, [phase], callbacks=callbacks, world=world)


def _flops_by_stage(learner: FittedLearner, batch: Batch) -> list[float]:
    """Return the FLOPs per token of each stage of unfreezing; empty if all parameters are trained from the start."""
    freezing = Freezing(learner.module, learner.parameter_groups())
    if not freezing.late:
        return []
    counts = []
    for stage in range(len(freezing.late) + 1):
        freezing.enter(stage)
        counts.append(flops_per_token(learner.module, batch, learner.tokens(batch)))
    return counts


def frozen_bodies(model: torch.nn.Module) -> list[FrozenBody]:
    """Return the frozen bodies inside a model, which cache what they compute."""
    return [module for module in model.modules() if isinstance(module, FrozenBody)]


def count_trainable(model: torch.nn.Module) -> int:
    """Return the number of parameters that are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def count_parameters(model: torch.nn.Module) -> int:
    """Return the number of parameters; a quantized matrix counts as the matrix that it represents."""
    states = [(p, getattr(p, "quant_state", None)) for p in model.parameters()]
    return sum(p.numel() if state is None else state.shape.numel() for p, state in states)
