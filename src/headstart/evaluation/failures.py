"""Detect failed runs: a trained method that scores no better than the majority class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from headstart.evaluation.metrics import about, compute


class Details(Protocol):
    """How a score was obtained."""

    @property
    def trainable_parameters(self) -> int | None:
        """Return the number of trained parameters, or None for a baseline."""
        ...

    @property
    def chosen(self) -> Mapping[str, Any] | None:
        """Return what a baseline selected, such as the majority label under `answer`."""
        ...


class Scored(Protocol):
    """A run with its scores on the test rows and its details."""

    @property
    def test(self) -> Mapping[str, float]:
        """Return the scores by metric."""
        ...

    @property
    def details(self) -> Details:
        """Return how the score was obtained."""
        ...


def failed(
    runs: Mapping[int, Scored], majority: Mapping[int, Scored], gold: Sequence[Any], metric: str
) -> tuple[int, ...]:
    """Return the seeds with which a trained method scores at or below the majority class."""
    sign = -1 if about(metric).lower_is_better else 1
    trained = {seed: run for seed, run in runs.items() if seed in majority and run.details.trainable_parameters}
    floors = {seed: _majority_score(majority[seed], gold, metric) for seed in trained}
    return tuple(seed for seed, run in trained.items() if sign * run.test[metric] <= sign * floors[seed])


def _majority_score(majority: Scored, gold: Sequence[Any], metric: str) -> float:
    """Return the score of the majority class: for tags, one tag for all words, not each word's most frequent tag."""
    if about(metric).of != "labels":
        return majority.test[metric]
    answer = (majority.details.chosen or {})["answer"]
    return compute([metric], gold, [[answer] * len(tags) for tags in gold])[metric]
