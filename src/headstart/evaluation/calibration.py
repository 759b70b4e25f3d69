"""Calibration: whether a model that is 90 % sure is right in 90 % of the cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headstart.core.errors import DataError
from headstart.evaluation.intervals import Estimate, wilson

BINS = 10


@dataclass(frozen=True)
class ReliabilityBin:
    """The examples whose confidence is in one range."""

    low: float
    high: float
    rows: int
    confidence: float
    """The mean confidence."""
    accuracy: Estimate
    """The fraction of correct predictions."""


@dataclass(frozen=True)
class Calibration:
    """How confident a model is, and how often it is right."""

    error: float
    """The expected calibration error."""
    confidence: float
    """The mean confidence."""
    accuracy: float
    bins: list[ReliabilityBin]
    """Only bins that have examples."""


def calibration(confidences: Sequence[float], correct: Sequence[bool], bins: int = BINS) -> Calibration:
    """Return reliability bins of equal width and the expected calibration error.

    Algorithm: bin i of n holds confidences in (i/n, (i+1)/n]; 0 belongs to the first. The error is the mean over the
    examples of the distance between the accuracy and the mean confidence of their bin.
    Paper: Naeini et al. 2015; Guo et al. 2017, On Calibration of Modern Neural Networks, section 2
    """
    if len(confidences) != len(correct) or not len(confidences):
        raise DataError(
            f"there are {len(confidences)} confidences and {len(correct)} predictions",
            allowed="Calibration needs one confidence per prediction, and at least one",
        )
    sure, hits = np.asarray(confidences, dtype=np.float64), np.asarray(correct, dtype=bool)
    edges = np.arange(bins + 1) / bins
    number = np.clip(np.searchsorted(edges, sure, side="left") - 1, 0, bins - 1)
    filled = []
    for i in np.unique(number).tolist():
        inside = number == i
        rows = int(inside.sum())
        accuracy = wilson(int(hits[inside].sum()), rows)
        filled.append(ReliabilityBin(float(edges[i]), float(edges[i + 1]), rows, float(sure[inside].mean()), accuracy))
    error = sum(bin.rows * abs((bin.accuracy.value or 0.0) - bin.confidence) for bin in filled) / len(sure)
    return Calibration(error, float(sure.mean()), float(hits.mean()), filled)
