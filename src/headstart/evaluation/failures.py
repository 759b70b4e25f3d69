"""Runs that learnt nothing of use: a trained method that scores no better than the majority class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from headstart.evaluation.metrics import about, compute


class Scored(Protocol):
    """A run with its scores on the test rows, and what is known of how it came about."""

    @property
    def test(self) -> Mapping[str, float]:
        """Return the scores by metric."""
        ...

    @property
    def details(self) -> Mapping[str, Any]:
        """Return what was noted: `trainable_parameters` of a trained method, what a baseline has `chosen`."""
        ...


def failed(
    runs: Mapping[int, Scored], majority: Mapping[int, Scored], gold: Sequence[Any], metric: str
) -> tuple[int, ...]:
    """Name the seeds with which a trained method scores at or below the majority class."""
    sign = -1 if about(metric).lower_is_better else 1
    trained = {seed: run for seed, run in runs.items() if seed in majority and run.details.get("trainable_parameters")}
    floors = {seed: _of_one_answer(majority[seed], gold, metric) for seed in trained}
    return tuple(seed for seed, run in trained.items() if sign * run.test[metric] <= sign * floors[seed])


def _of_one_answer(majority: Scored, gold: Sequence[Any], metric: str) -> float:
    """Return the majority class's score; of tags, one for all, where the baseline gives each word its own."""
    if about(metric).of != "labels":
        return majority.test[metric]
    answer = majority.details["chosen"]["answer"]
    return compute([metric], gold, [[answer] * len(tags) for tags in gold])[metric]
