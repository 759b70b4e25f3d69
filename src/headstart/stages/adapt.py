"""One cell of a fine-tuning run: one adaptation, one seed, from checkpoint to test predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from headstart.core.contracts import Adaptation, Batch, Examples, ParameterGroup, Part, Sample, Task
from headstart.evaluation import metrics
from headstart.evaluation.cost import CostConfig
from headstart.stages.forecast import flops_per_token
from headstart.stages.metering import RecordedMeter
from headstart.tasks.source import CheckpointFolder
from headstart.training.compilation import choose_attention
from headstart.training.loop import Loop
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
class Cell:
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
        self, model: PreTrainedModel, task: Task, adaptation: Adaptation, train: list[dict[str, Any]],
        validation: list[dict[str, Any]], gold: Sequence[Any], pad: int,
    ) -> None:  # fmt: skip
        """Bring model, task and encoded rows together."""
        self.model, self.module = model, LossModule(model, AdaptedTask(task, adaptation))
        self.task, self.adaptation, self.pad = task, adaptation, pad
        self.train, self.held_out, self.gold = train, validation, gold
        self.lengths = [len(example["input_ids"]) for example in train]
        self.parts: Sequence[Part] = ()

    def __len__(self) -> int:
        return len(self.train)

    def batch(self, samples: Sequence[Sample]) -> Batch:
        """Collate the examples of some samples."""
        return self.task.collate([self.train[sample.index] for sample in samples], self.pad)

    def weight(self, batch: Batch) -> float:
        """Return the number of examples."""
        return float(len(batch["labels"]))

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens read, padding included, since it is computed too."""
        return batch["input_ids"].numel()

    def parameter_groups(self) -> list[ParameterGroup]:
        """Return the adaptation's groups under the module's names."""
        groups = self.adaptation.groups(self.model)
        return [ParameterGroup(tuple(f"model.{name}" for name in group.names), group.lr_scale) for group in groups]

    def validate(self) -> dict[str, float]:
        """Score the validation rows."""
        predicted = predict(self.model, self.task, self.held_out, self.pad)
        return metrics.compute(self.task.metrics(), self.gold, predicted)


def predict(model: PreTrainedModel, task: Task, encoded: Sequence[dict[str, Any]], pad: int) -> list[Any]:
    """Return the decoded predictions in the order given; batches are made of like lengths."""
    device = next(model.parameters()).device
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]["input_ids"]))
    outputs: dict[int, np.ndarray[Any, Any]] = {}
    model.eval()
    for start in range(0, len(order), _EVALUATION_BATCH):
        chosen = order[start : start + _EVALUATION_BATCH]
        batch = {name: t.to(device) for name, t in task.collate([encoded[i] for i in chosen], pad).items()}
        with torch.no_grad():
            logits = task.logits(model, batch)
        outputs.update(zip(chosen, logits.float().cpu().numpy(), strict=True))
    return task.decode(np.stack([outputs[i] for i in range(len(encoded))]))


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
) -> tuple[Cell, PreTrainedModel]:
    """Train one adaptation with one seed, keep its best weights by validation, and predict the test rows once."""
    with RecordedMeter(work / "cost.json", cost) as meter:
        work.mkdir(parents=True, exist_ok=True)
        source = CheckpointFolder(checkpoint, task, seed)
        tokenizer = source.tokenizer()
        train, validation, test = (
            task.encode(split, tokenizer, max_length) for split in (splits.train, splits.validation, splits.test)
        )
        model = adaptation.adapt(source)
        task.prepare_head(model)
        choose_attention(model)
        learner = TaskLearner(
            model, task, adaptation, train, validation, splits.validation.labels, tokenizer.pad_token_id
        )
        trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
        total = sum(p.numel() for p in model.parameters())
        first = learner.batch([Sample(0, index) for index in range(min(batch_size, len(train)))])
        per_token = flops_per_token(learner.module, first, learner.tokens(first))
        loop = Loop(
            learner, settings, batch_size=min(batch_size, len(train)), seed=seed, folder=work, fingerprint=fingerprint,
            flops_per_token=per_token, keep_best=True,
        )  # fmt: skip
        start = loop.restore().resumed_from
        with tracking(f"{method} seed {seed}", work / "logs", start, quiet) as trackers:
            outcome = loop.run([*trackers, meter])
        model = adaptation.finish(model)
        with loop.autocast():
            predictions = predict(model, task, test, tokenizer.pad_token_id)
    progress = outcome.progress
    meter.tokens, meter.flops = progress.tokens, progress.flops
    cell = Cell(
        method, seed, predictions,
        test=metrics.compute(task.metrics(), splits.test.labels, predictions),
        validation=outcome.validation,
        details={
            "trainable_parameters": trainable, "parameters": total, "steps": progress.step,
            "best_step": progress.best_step, "learning_rate": settings.learning_rate, "train_rows": len(splits.train),
        },
        cost=meter.tag().to_dict(),
    )  # fmt: skip
    return cell, model
