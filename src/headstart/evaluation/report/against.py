"""The comparison of two models on the same rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headstart.core.errors import DataError
from headstart.evaluation.comparison import compare_runs
from headstart.evaluation.intervals import Estimate
from headstart.evaluation.metrics import Floats, about, compute, plain
from headstart.evaluation.report.predicted import MOST_ROWS, Predicted
from headstart.evaluation.report.rows import score_rows, text_of, values_of
from headstart.evaluation.significance import LEVEL


@dataclass(frozen=True)
class DifferingRow:
    """A row that one model predicts better than the other."""

    row: int
    """Counted from 1."""
    gold: Any
    predicted: Any
    other: Any
    """The prediction of the other model."""
    is_better: bool
    """The model is better than the other one on this row."""
    text: str


@dataclass(frozen=True)
class Against:
    """How a model compares with another one on the same rows."""

    model: str
    """The other model."""
    metric: str
    value: float
    other: float
    lead: Estimate
    """The difference in favor of the model."""
    p_value: float
    is_decided: bool
    better: int
    """Rows on which the model is better."""
    worse: int
    equal: int
    rows: list[DifferingRow]
    """Rows on which the two differ, those on which the model is worse first."""


def compare_models(predicted: Predicted, other: Predicted, name: str) -> Against:
    """Compare the predictions of two models for the same rows.

    The p-value is that of the paired bootstrap over examples: it is about these two models, not about training them
    again with other seeds.
    """
    gold = predicted.gold
    if other.gold != gold or other.kind != predicted.kind:
        raise DataError(
            f"the gold values that {name} reads from the file are others",
            allowed="A comparison needs two models of the same task",
            do="Choose a model that was fine-tuned for the same column",
        )
    metric = predicted.metrics[0]
    pair = [plain(predicted.predictions), plain(other.predictions)]
    lead = compare_runs(gold, {0: pair[0]}, {0: pair[1]}, metric)
    values = [compute([metric], gold, answers)[metric] for answers in pair]
    difference = _row_scores(predicted, pair[0]) - _row_scores(predicted, pair[1])
    differing = np.flatnonzero(difference).tolist()
    # Rows with the largest losses first, then those with the largest gains.
    order = sorted(differing, key=lambda row: (difference[row] > 0, -abs(difference[row]), row))
    kept = _both_sides(order, difference)
    rows = []
    for row in kept:
        shown, first, second = values_of(predicted.rows, row, gold[row], pair[0][row], pair[1][row])
        is_better = bool(difference[row] > 0)
        rows.append(DifferingRow(row + 1, shown, first, second, is_better, text_of(predicted.rows, row)))
    better, worse = int((difference > 0).sum()), int((difference < 0).sum())
    return Against(
        name, metric, values[0], values[1], Estimate(lead.difference, lead.low, lead.high), lead.p_over_examples,
        lead.p_over_examples <= LEVEL, better, worse, len(gold) - better - worse, rows,
    )  # fmt: skip


def _both_sides(order: list[int], difference: Floats) -> list[int]:
    """Return at most fifty rows: half of each side, or more of one where the other has fewer."""
    worse, better = [row for row in order if difference[row] < 0], [row for row in order if difference[row] > 0]
    worse = worse[: max(MOST_ROWS // 2, MOST_ROWS - len(better))]
    return worse + better[: MOST_ROWS - len(worse)]


def _row_scores(predicted: Predicted, answers: list[Any]) -> Floats:
    """Return a value of each row alone, higher is better."""
    gold, metric = predicted.gold, predicted.metrics[0]
    if predicted.kind == "label":
        return np.array([float(a == b) for a, b in zip(gold, answers, strict=True)])
    if predicted.kind == "number":
        numbers = replace(predicted, predictions=answers).numbers()
        return np.array([-abs(a - b) for a, b in zip(*numbers, strict=True)])
    values = np.nan_to_num(score_rows(metric, gold, answers))
    return -values if about(metric).lower_is_better else values
