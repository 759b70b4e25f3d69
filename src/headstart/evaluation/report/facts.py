"""What the page of errors reports, computed from gold values, predictions and probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from headstart.evaluation.calibration import Calibration, calibration
from headstart.evaluation.confusion import ClassScore, ConfusedPair, Confusion
from headstart.evaluation.intervals import Estimate, bootstrap, bootstrap_mean, wilson
from headstart.evaluation.label_errors import average_scores, find_label_errors
from headstart.evaluation.metrics import Floats, about, plain
from headstart.evaluation.report.against import Against
from headstart.evaluation.report.predicted import MOST_ROWS, Predicted
from headstart.evaluation.report.rows import score_rows, text_length, text_of, values_of
from headstart.evaluation.slices import Slice, by_quartile, by_value

MOST_SUSPECTS = 200
"""Rows in the list of labels that are probably wrong."""
MOST_CLASSES = 20
"""Classes in the confusion matrix, and pairs in the list of confusions."""
_RESIDUAL_BINS = 10


@dataclass(frozen=True)
class SliceScore:
    """The score on a group of rows."""

    name: str
    rows: int
    score: Estimate


@dataclass(frozen=True)
class SliceTable:
    """The score on each group of rows."""

    by: str
    """What the rows are grouped by."""
    metric: str
    slices: list[SliceScore]


@dataclass(frozen=True)
class WrongRow:
    """A row that the model predicts wrongly."""

    row: int
    """Counted from 1."""
    gold: Any
    predicted: Any
    score: float | None
    """The confidence of a label, the error of a number, or the metric on this row alone."""
    text: str


@dataclass(frozen=True)
class SuspectRow:
    """A row whose label is probably wrong."""

    row: int
    given: Any
    suggested: Any
    given_probability: float
    suggested_probability: float
    text: str


@dataclass(frozen=True)
class LabelErrors:
    """Rows whose label is probably wrong."""

    found: int
    models: int
    """The number of models whose probabilities were averaged."""
    rows: list[SuspectRow]
    """The surest, at most two hundred."""


@dataclass(frozen=True)
class Matrix:
    """The confusion matrix, of the most confused classes if there are many."""

    labels: list[Any]
    counts: list[list[int]]
    classes: int
    """The number of all classes."""


@dataclass(frozen=True)
class Residuals:
    """The errors of predicted numbers (prediction − gold)."""

    mean: float
    """The bias: positive where predictions are too high on average."""
    absolute: Estimate
    """The mean absolute error."""
    root_mean_square: float
    histogram: dict[str, int]


@dataclass(frozen=True)
class Evaluation:
    """All that the page reports. What does not apply to the task is empty or None."""

    model: str
    data: str
    rows: int
    kind: str
    """What a gold value is: a label, a number, labels, a text, …"""
    metrics: dict[str, Estimate]
    errors: int | None
    """Rows that are predicted wrongly; None where predictions are not right or wrong."""
    worst_by: str
    worst: list[WrongRow]
    classes: list[ClassScore] = field(default_factory=list)
    matrix: Matrix | None = None
    confusions: list[ConfusedPair] = field(default_factory=list)
    calibration: Calibration | None = None
    residuals: Residuals | None = None
    by_length: SliceTable | None = None
    by_column: SliceTable | None = None
    label_errors: LabelErrors | None = None
    against: Against | None = None
    warning: str = ""
    """What a reader must know before the scores."""


def evaluate_rows(
    predicted: Predicted,
    model: str,
    data: str,
    by: tuple[str, Sequence[Any]] | None = None,
    against: Against | None = None,
    warning: str = "",
) -> Evaluation:
    """Compute everything that applies to the task; `by` is a column of the data with its values."""
    gold, kind = predicted.gold, predicted.kind
    pair = (gold, plain(predicted.predictions))
    confusion = Confusion.of(*_flat(*pair)) if kind in ("label", "labels") else None
    lengths = by_quartile([text_length(predicted.rows, row) for row in range(len(gold))])
    errors, worst_by, worst = _worst(predicted)
    return Evaluation(
        model, data, len(gold), kind,
        {name: bootstrap(name, *pair) for name in predicted.metrics},
        errors, worst_by, worst,
        [] if confusion is None else confusion.class_scores(),
        None if confusion is None else _matrix(confusion),
        [] if confusion is None else confusion.pairs(MOST_CLASSES),
        _calibration(predicted) if predicted.has_probabilities else None,
        _residuals(predicted) if kind == "number" else None,
        _sliced(predicted, "length of the text in characters", lengths) if len(lengths) > 1 else None,
        None if by is None else _sliced(predicted, by[0], by_value(by[1])),
        _label_errors(predicted) if predicted.has_probabilities else None,
        against, warning,
    )  # fmt: skip


def _flat(gold: Sequence[Any], predicted: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return labels unchanged, and lists of tags as one list of all tags."""
    pairs = zip(gold, predicted, strict=True)
    if not isinstance(gold[0], list):
        return list(gold), list(predicted)
    tags = [pair for row in pairs for pair in zip(*row, strict=False)]
    return [tag for tag, _ in tags], [tag for _, tag in tags]


def _matrix(confusion: Confusion) -> Matrix:
    shown = confusion.most_confused(MOST_CLASSES)
    return Matrix(shown.labels, shown.counts.tolist(), len(confusion.labels))


def _calibration(predicted: Predicted) -> Calibration:
    chosen = list(zip(predicted.scores, plain(predicted.predictions), predicted.gold, strict=True))
    return calibration([row.get(label, 0.0) for row, label, _ in chosen], [label == gold for _, label, gold in chosen])


def _residuals(predicted: Predicted) -> Residuals:
    gold, answers = predicted.numbers()
    errors: Floats = np.asarray(answers, dtype=np.float64) - np.asarray(gold, dtype=np.float64)
    counts, edges = np.histogram(errors, bins=_RESIDUAL_BINS)
    names = [f"{low:+.3g} to {high:+.3g}" for low, high in pairwise(edges)]
    return Residuals(
        float(errors.mean()), bootstrap_mean(np.abs(errors).tolist()), float(np.sqrt((errors**2).mean())),
        dict(zip(names, counts.tolist(), strict=True)),
    )  # fmt: skip


def _sliced(predicted: Predicted, by: str, slices: Sequence[Slice]) -> SliceTable:
    gold, answers = predicted.gold, plain(predicted.predictions)
    metric = {"label": "accuracy", "number": "mean absolute error"}.get(predicted.kind, predicted.metrics[0])

    distances = [abs(a - b) for a, b in zip(*predicted.numbers(), strict=True)] if predicted.kind == "number" else []

    def score(rows: Sequence[int]) -> Estimate:
        pairs = [(gold[row], answers[row]) for row in rows]
        if predicted.kind == "label":
            return wilson(sum(a == b for a, b in pairs), len(pairs))
        if predicted.kind == "number":
            return bootstrap_mean([distances[row] for row in rows])
        return bootstrap(metric, [a for a, _ in pairs], [b for _, b in pairs])

    return SliceTable(by, metric, [SliceScore(part.name, len(part.rows), score(part.rows)) for part in slices])


def _worst(predicted: Predicted) -> tuple[int | None, str, list[WrongRow]]:
    """Return the number of errors, what the errors are ordered by, and the worst of them."""
    gold, answers, metric = predicted.gold, plain(predicted.predictions), predicted.metrics[0]
    scores: list[float | None]
    if predicted.kind == "label":
        wrong = [row for row in range(len(gold)) if gold[row] != answers[row]]
        known = predicted.has_probabilities
        scores = [row.get(answer, 0.0) for row, answer in zip(predicted.scores, answers, strict=True)] if known else []
        order = sorted(wrong, key=lambda row: -(scores[row] or 0.0)) if known else wrong
        return len(wrong), "confidence" if known else "", _wrong_rows(predicted, order, scores)
    if predicted.kind == "number":
        scores = [answer - value for value, answer in zip(*predicted.numbers(), strict=True)]
        order = sorted(range(len(gold)), key=lambda row: -abs(scores[row] or 0.0))
        return None, "error" if predicted.same_scale else "error of the rank", _wrong_rows(predicted, order, scores)
    values = score_rows(metric, gold, answers)
    badness = values if about(metric).lower_is_better else -values
    order = [row for row in np.argsort(-badness, kind="stable").tolist() if not _is_perfect(metric, values[row])]
    count = len(order) if predicted.kind == "labels" else None
    return count, metric, _wrong_rows(predicted, order, values.tolist())


def _is_perfect(metric: str, value: float) -> bool:
    return not np.isfinite(value) or (not about(metric).lower_is_better and value >= 1.0)


def _wrong_rows(predicted: Predicted, order: Sequence[int], scores: Sequence[float | None]) -> list[WrongRow]:
    gold, answers = predicted.gold, plain(predicted.predictions)
    rows = []
    for row in order[:MOST_ROWS]:
        shown, answer = values_of(predicted.rows, row, gold[row], answers[row])
        text = text_of(predicted.rows, row)
        rows.append(WrongRow(row + 1, shown, answer, scores[row] if scores else None, text))
    return rows


def _label_errors(predicted: Predicted) -> LabelErrors:
    runs = [run for run in predicted.scores_of_seeds if len(run) == len(predicted.rows)] or [predicted.scores]
    issues = find_label_errors(predicted.gold, average_scores(runs))
    suspects = [
        SuspectRow(
            issue.row + 1, issue.given, issue.suggested, issue.given_probability, issue.suggested_probability,
            text_of(predicted.rows, issue.row),
        )
        for issue in issues[:MOST_SUSPECTS]
    ]  # fmt: skip
    return LabelErrors(len(issues), len(runs), suspects)
