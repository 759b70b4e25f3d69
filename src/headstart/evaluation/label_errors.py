"""Rows whose label is probably wrong, by confident learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headstart.core.data import Bools
from headstart.core.errors import DataError
from headstart.evaluation.metrics import Floats

_ROUNDING = 1e-6
"""A probability this much below the threshold still reaches it, as in cleanlab."""


@dataclass(frozen=True)
class LabelIssue:
    """A row whose label the model disagrees with, confidently."""

    row: int
    given: Any
    suggested: Any
    given_probability: float
    suggested_probability: float


def find_label_errors(given: Sequence[Any], scores: Sequence[Mapping[Any, float]]) -> list[LabelIssue]:
    """Return the rows whose label is probably wrong, the surest first.

    Algorithm: the threshold of a class is the mean probability of the class over the rows that carry its label. A row
    belongs confidently to the class with the highest probability among those that reach their threshold. Rows that
    belong confidently to another class than their label are returned, unless the label is also the most probable class.
    They are ordered by the margin between the probabilities of the suggested and the given class.
    Properties: the probabilities must be out of sample: of a model that was not trained on these rows.
    Paper: Northcutt et al. 2021, Confident Learning, section 3.1; the off-diagonal of the confident joint
    """
    labels, codes, probabilities = probability_matrix(given, scores)
    if not len(codes):
        return []
    thresholds = class_thresholds(codes, probabilities)
    reaches: Bools = probabilities >= thresholds - _ROUNDING
    confident = np.where(reaches, probabilities, -1.0).argmax(axis=1)
    rows = np.arange(len(codes))
    is_error = reaches.any(axis=1) & (confident != codes) & (probabilities.argmax(axis=1) != codes)
    margin = probabilities[rows, confident] - probabilities[rows, codes]
    order = sorted(np.flatnonzero(is_error).tolist(), key=lambda row: (-margin[row], row))
    return [
        LabelIssue(
            row, given[row], labels[confident[row]], float(probabilities[row, codes[row]]),
            float(probabilities[row, confident[row]]),
        )
        for row in order
    ]  # fmt: skip


def class_thresholds(codes: Sequence[int], probabilities: Floats) -> Floats:
    """Return the mean self-confidence of each class; a class without rows gets 2, which nothing reaches."""
    given = np.asarray(codes)
    return np.array([
        probabilities[given == label, label].mean() if (given == label).any() else 2.0
        for label in range(probabilities.shape[1])
    ])  # fmt: skip


def average_scores(runs: Sequence[Sequence[Mapping[Any, float]]]) -> list[dict[Any, float]]:
    """Return the mean of several models' probabilities for each row."""
    return [{label: float(np.mean([run[label] for run in row])) for label in row[0]} for row in zip(*runs, strict=True)]


def probability_matrix(
    given: Sequence[Any], scores: Sequence[Mapping[Any, float]]
) -> tuple[list[Any], list[int], Floats]:
    """Return the labels, the index of each row's label, and the probabilities of shape (rows, labels)."""
    if len(given) != len(scores):
        raise DataError(
            f"there are {len(given)} labels and {len(scores)} rows of probabilities",
            allowed="Each row needs one label and the probability of every label",
        )
    labels = list(dict.fromkeys(label for row in scores for label in row))
    index = {label: i for i, label in enumerate(labels)}
    unknown = next((label for label in given if label not in index), None)
    if unknown is not None:
        raise DataError(f"no row has a probability of the label {unknown!r}")
    matrix = np.array([[row.get(label, 0.0) for label in labels] for row in scores], dtype=np.float64)
    return labels, [index[label] for label in given], matrix.reshape(len(scores), len(labels))
