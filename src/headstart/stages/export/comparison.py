"""The comparison of exported models with the model in torch: scores on the same rows, size and latency."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headstart.core.contracts import Task
from headstart.core.data import Examples, Feature, InputSpec
from headstart.core.errors import ArtifactError
from headstart.evaluation.metrics import about
from headstart.evaluation.report.against import Against, compare_models
from headstart.evaluation.report.predicted import Predicted
from headstart.evaluation.significance import describe_p
from headstart.stages.export.source import middle_rows
from headstart.stages.finetune.learner import run_model
from headstart.training import precision

BATCHES = (1, 32)
"""Rows in the batches whose latency is measured."""
_WARM_UP = 3


@dataclass(frozen=True)
class Runner:
    """A model that can be measured: the one in torch, or an exported one."""

    name: str
    network: Any
    task: Task
    spec: InputSpec
    bytes: int
    """The size of the files that the model needs to run."""
    precision: str = "fp32"
    """The number format of torch's products; other runtimes ignore it."""
    folder: Path | None = None

    def outputs(self, features: Sequence[Feature]) -> list[Any]:
        """Return the raw output for each feature."""
        device = next(self.network.parameters()).device
        with precision.autocast(self.precision, device):
            return run_model(self.network, self.task, features, self.spec)

    def call(self, features: Sequence[Feature]) -> Callable[[], object]:
        """Return a function that predicts features in one batch, which is made in advance."""
        device = next(self.network.parameters()).device
        batch = {name: tensor.to(device) for name, tensor in self.task.collate(features, self.spec).items()}

        def predict() -> object:
            with torch.inference_mode(), precision.autocast(self.precision, device):
                return self.task.predict(self.network, batch)

        return predict


@dataclass(frozen=True)
class Measured:
    """The figures of one model."""

    name: str
    score: float
    bytes: int
    latency_ms: dict[str, float]
    """The median time of one batch, by its number of rows."""
    loss: float = 0.0
    """What the score lost against torch, in points; negative where it gained."""
    low: float | None = None
    high: float | None = None
    """The 95 % interval of the loss."""
    p_value: float | None = None
    changed: int = 0
    """Rows with another prediction than torch's."""
    largest_difference: float | None = None
    """The largest difference between an output and that of torch, where both are arrays of one shape."""

    @property
    def speed(self) -> float:
        """The geometric mean of the latencies: lower is faster."""
        return math.exp(statistics.fmean(math.log(value) for value in self.latency_ms.values()))

    def loss_sentence(self, metric: str) -> str:
        """Return the loss in words."""
        if self.p_value is None:
            return ""
        interval = ""
        verb, sign = ("loses", 1) if self.loss >= 0 else ("gains", -1)
        if self.low is not None and self.high is not None:
            low, high = sorted([sign * self.low, sign * self.high])
            interval = f" (95 % interval {low:.2f} to {high:.2f})"
        return (
            f"{self.name} {verb} {abs(self.loss):.2f} points of {metric}{interval}, {describe_p(self.p_value)}, "
            f"{self.changed:,} predictions differ"
        )


@dataclass(frozen=True)
class Comparison:
    """The figures of the model in torch and of its exports on the same rows."""

    metric: str
    scale: float
    """By what the metric is multiplied to give points."""
    rows: int
    source: str
    """The file with the rows."""
    threads: int
    repetitions: int
    tolerance: float
    models: list[Measured] = field(default_factory=list)
    kept: str = ""
    """The name of the export that was kept."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Comparison:
        """Read what `to_dict` returned."""
        return cls(**{**values, "models": [Measured(**model) for model in values["models"]]})

    @property
    def best(self) -> Measured:
        """The export that was kept."""
        return next(model for model in self.models if model.name == self.kept)

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the header and the rows of the table of figures."""
        header = [
            "model",
            self.metric,
            "loss (points)",
            "p",
            "changed",
            "size",
            *(f"{rows} row{'s' * (rows != 1)}" for rows in BATCHES),
        ]
        first = self.models[0]
        rows = []
        for model in self.models:
            times = [(model.latency_ms[str(n)], first.latency_ms[str(n)]) for n in BATCHES]
            rows.append([
                model.name, f"{model.score * self.scale:.2f}",
                *(["", "", ""] if model.p_value is None else
                  [f"{model.loss:+.2f}", describe_p(model.p_value).removeprefix("p ").removeprefix("= "),
                   f"{model.changed:,}"]),
                f"{model.bytes / 1e6:,.1f} MB", *(f"{mine:.1f} ms ({torchs / mine:.2f}×)" for mine, torchs in times),
            ])  # fmt: skip
        return header, rows


def compare(
    rows: Examples, features: Sequence[Feature], reference: Sequence[Runner], exports: Sequence[Runner], threads: int,
    repetitions: int, tolerance: float,
) -> Comparison:  # fmt: skip
    """Measure the model in torch and its exports on the same rows.

    Args:
        rows: the labeled rows.
        features: the rows as the model in torch reads them.
        reference: the model in torch; all others are compared with its first entry.
        exports: the exported models.
        threads: the threads of every model, for the record.
        repetitions: timed calls of each model for each batch size.
        tolerance: the loss in points that is accepted, for the record.
    """
    runners = [*reference, *exports]
    metric = reference[0].task.metrics()[0]
    scale = about(metric).scale
    encoded = [features if runner.spec is reference[0].spec else runner.task.encode(rows, runner.spec)
               for runner in runners]  # fmt: skip
    latency = _latencies(runners, encoded, repetitions)
    measured: list[Measured] = []
    first: tuple[Predicted, list[Any]] | None = None
    for runner, own, times in zip(runners, encoded, latency, strict=True):
        outputs = runner.outputs(own)
        predicted = Predicted(rows, runner.task.metrics(), runner.task.decode(outputs, own, runner.spec))
        first = first or (predicted, outputs)
        against = compare_models(predicted, first[0], reference[0].name)
        figures = {} if runner is reference[0] else _loss(against, predicted, first[0], scale)
        difference = None if runner is reference[0] else _largest_difference(outputs, first[1])
        measured.append(
            Measured(runner.name, against.value, runner.bytes, times, largest_difference=difference, **figures)
        )
    return Comparison(metric, scale, len(rows), rows.source, threads, repetitions, tolerance, measured)


def choose(comparison: Comparison, exports: Sequence[str]) -> str:
    """Return the fastest export within the tolerance, or raise with the figures of all of them."""
    models = [model for model in comparison.models if model.name in exports]
    within = [model for model in models if model.loss <= comparison.tolerance]
    if not within:
        raise ArtifactError(
            "the export loses more than the tolerance: "
            + "; ".join(model.loss_sentence(comparison.metric) for model in models)
            + f" ({comparison.rows:,} rows of {comparison.source})",
            allowed=f"--tolerance is {comparison.tolerance:g} points; nothing was written",
            do="Raise --tolerance, or choose another format",
        )
    return min(within, key=lambda model: model.speed).name


def _loss(against: Against, predicted: Predicted, first: Predicted, scale: float) -> dict[str, Any]:
    """Return the loss with its interval in points, the p-value and the number of changed predictions."""
    gain, low, high = (
        None if value is None else value * scale for value in (against.lead.value, against.lead.low, against.lead.high)
    )
    assert gain is not None
    return {
        # 0.0 - x, so that no loss is 0.0 and not -0.0.
        "loss": 0.0 - gain, "low": None if high is None else 0.0 - high, "high": None if low is None else 0.0 - low,
        "p_value": against.p_value,
        "changed": sum(_differs(a, b) for a, b in zip(predicted.predictions, first.predictions, strict=True)),
    }  # fmt: skip


def _differs(first: Any, second: Any) -> bool:
    """True if two predictions differ; numbers differ if the difference exceeds rounding."""
    if isinstance(first, float) and isinstance(second, float):
        return not math.isclose(first, second, rel_tol=1e-3, abs_tol=1e-5)
    return bool(first != second)


def _largest_difference(outputs: Sequence[Any], first: Sequence[Any]) -> float | None:
    largest = 0.0
    if len(outputs) != len(first):
        return None
    for mine, other in zip(outputs, first, strict=True):
        arrays = isinstance(mine, np.ndarray) and isinstance(other, np.ndarray)
        if not arrays or mine.shape != other.shape:
            return None
        # Answers that are not allowed have a score of -inf in both.
        finite = np.isfinite(mine) | np.isfinite(other)
        largest = max(largest, float(np.abs(mine[finite] - other[finite]).max(initial=0.0)))
    return largest


def _latencies(
    runners: Sequence[Runner], encoded: Sequence[Sequence[Feature]], repetitions: int
) -> list[dict[str, float]]:
    """Return the median time of a batch for each model, in milliseconds; the models take turns."""
    medians: list[dict[str, float]] = [{} for _ in runners]
    for count in BATCHES:
        calls = [
            runner.call(middle_rows(runner.task, features, count))
            for runner, features in zip(runners, encoded, strict=True)
        ]
        times: list[list[float]] = [[] for _ in runners]
        for repetition in range(_WARM_UP + repetitions):
            for call, taken in zip(calls, times, strict=True):
                started = time.perf_counter()
                call()
                if repetition >= _WARM_UP:
                    taken.append((time.perf_counter() - started) * 1000)
        for median, taken in zip(medians, times, strict=True):
            median[str(count)] = statistics.median(taken)
    return medians
