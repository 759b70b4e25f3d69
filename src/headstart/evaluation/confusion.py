"""The confusion matrix, and precision, recall and F1 of each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headstart.evaluation.intervals import Estimate, wilson
from headstart.evaluation.labels import label_codes
from headstart.evaluation.metrics import Ints


@dataclass(frozen=True)
class ClassScore:
    """How well one class is found."""

    label: Any
    support: int
    """Examples of the class."""
    predicted: int
    """Predictions of the class."""
    precision: float | None
    """None where the class is never predicted."""
    recall: Estimate
    f1: float


@dataclass(frozen=True)
class ConfusedPair:
    """How often one class was taken for another."""

    gold: Any
    predicted: Any
    count: int
    fraction: float
    """Of the examples of the gold class."""


@dataclass(frozen=True)
class Confusion:
    """Counts of gold and predicted classes; the class with the most examples comes first."""

    labels: list[Any]
    counts: Ints  # (gold, predicted)

    @classmethod
    def of(cls, gold: Sequence[Any], predicted: Sequence[Any]) -> Confusion:
        """Count every pair of a gold and a predicted label."""
        (gold_codes, predicted_codes), labels = label_codes(gold, predicted)
        counts = np.zeros((len(labels), len(labels)), dtype=np.int64)
        np.add.at(counts, (gold_codes, predicted_codes), 1)
        order = np.argsort(-counts.sum(axis=1), kind="stable")
        return cls([labels[i] for i in order], counts[np.ix_(order, order)])

    def most_confused(self, limit: int) -> Confusion:
        """Return the matrix of the `limit` classes with the most errors as gold or predicted class, in the same order.

        Errors between a class that is kept and one that is not are not in it.
        """
        if len(self.labels) <= limit:
            return self
        errors = self._errors()
        worst = np.argsort(-(errors.sum(axis=0) + errors.sum(axis=1)), kind="stable")[:limit]
        kept = np.sort(worst)
        return Confusion([self.labels[i] for i in kept], self.counts[np.ix_(kept, kept)])

    def pairs(self, limit: int) -> list[ConfusedPair]:
        """Return the most frequent confusions, the most frequent first."""
        errors, support = self._errors(), self.counts.sum(axis=1)
        order = np.argsort(-errors, axis=None, kind="stable")[:limit]
        places = zip(*np.unravel_index(order, errors.shape), strict=True)
        return [
            ConfusedPair(self.labels[i], self.labels[j], int(errors[i, j]), float(errors[i, j] / max(support[i], 1)))
            for i, j in places
            if errors[i, j]
        ]

    def class_scores(self) -> list[ClassScore]:
        """Return precision, recall and F1 of each class."""
        support, predicted = self.counts.sum(axis=1).tolist(), self.counts.sum(axis=0).tolist()
        hits = np.diag(self.counts).tolist()
        return [
            ClassScore(
                label, support[i], predicted[i], hits[i] / predicted[i] if predicted[i] else None,
                wilson(hits[i], support[i]), 2 * hits[i] / (support[i] + predicted[i]),
            )
            for i, label in enumerate(self.labels)
        ]  # fmt: skip

    def _errors(self) -> Ints:
        errors = self.counts.copy()
        np.fill_diagonal(errors, 0)
        return errors
