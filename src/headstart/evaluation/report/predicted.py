"""The predictions of a model for labeled rows, as the page of errors takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headstart.core.data import Examples
from headstart.evaluation.label_sets import LABEL_SET
from headstart.evaluation.metrics import about, plain

MOST_ROWS = 50
"""Rows in each list of examples."""


@dataclass(frozen=True)
class Predicted:
    """The predictions of a model for labeled rows."""

    rows: Examples
    metrics: Sequence[str]
    """The metrics of the task, the most important first."""
    predictions: Sequence[Any]
    scores: Sequence[Any] = ()
    """The probability of each label, by label, for every row; empty if the model gives none."""
    scores_of_seeds: Sequence[Sequence[Mapping[Any, float]]] = ()
    """The probabilities by models of several seeds, if there are any; their mean finds wrong labels."""
    same_scale: bool = True
    """Predicted numbers are on the scale of the gold values. Otherwise, errors are differences of percentile ranks."""

    @property
    def kind(self) -> str:
        """Return what a gold value is (a label, a number, labels, a text, …), as the first metric declares it."""
        return about(self.metrics[0]).of

    @property
    def has_probabilities(self) -> bool:
        """Return whether every row has the probability of its label."""
        return (
            self.kind == "label"
            and len(self.scores) == len(self.rows)
            and all(isinstance(row, Mapping) and gold in row for row, gold in zip(self.scores, self.gold, strict=True))
        )

    @property
    def has_label_probabilities(self) -> bool:
        """Return whether every row of a multi-label task has the probability of each label."""
        has_all = len(self.scores) == len(self.rows) and all(isinstance(row, Mapping) for row in self.scores)
        return self.kind == LABEL_SET and has_all

    def numbers(self) -> tuple[list[float], list[float]]:
        """Return gold and predicted numbers on one scale: as they are, or as percentile ranks (0 to 1)."""
        pair = self.gold, plain(self.predictions)
        if self.same_scale:
            return pair
        from scipy.stats import rankdata

        gold, predicted = (((rankdata(values) - 0.5) / len(values)).tolist() for values in pair)
        return gold, predicted

    @property
    def gold(self) -> list[Any]:
        """Return the gold values."""
        return plain(self.rows.labels)
