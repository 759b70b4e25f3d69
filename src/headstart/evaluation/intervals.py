"""95 % intervals of a score on one test set: the bootstrap for metrics and means, Wilson's for fractions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headstart.evaluation.comparison import SAMPLES, resampling_seed
from headstart.evaluation.metrics import Floats, about, compute
from headstart.evaluation.resampling import CrossedDesign, Resampled, resampled, scores_on_resamples

_FEWER_SAMPLES = 200
"""Resamples for a metric that is called once for each of them, and the fewest for large test sets."""
_MOST_DRAWS = 200_000_000
"""Rows drawn for one interval: 2,000 resamples up to 100,000 rows, fewer beyond."""
NORMAL_95 = 1.959963984540054
"""The 97.5 % point of the normal distribution."""


@dataclass(frozen=True)
class Estimate:
    """A score and its 95 % interval; the ends are None where they are unknown."""

    value: float | None
    """None where the score is not defined on these rows."""
    low: float | None = None
    high: float | None = None


def bootstrap(metric: str, gold: Sequence[Any], predicted: Sequence[Any]) -> Estimate:
    """Return a metric with the middle 95 % of its values on resampled test examples.

    Paper: Efron & Tibshirani 1993, the percentile interval
    """
    value = compute([metric], gold, predicted)[metric]
    is_fast = about(metric).sums is not None or metric == "spearman"
    samples = SAMPLES if is_fast else _FEWER_SAMPLES
    return _estimate(value, resampled(metric, gold, [predicted])[0], len(gold), samples, resampling_seed(gold))


def bootstrap_mean(values: Sequence[float], design: CrossedDesign | None = None) -> Estimate:
    """Return the mean of one value per example with its bootstrap interval.

    Examples are independent of each other, or the cells of a table whose rows and columns are drawn.
    """
    array = np.asarray(values, dtype=np.float64)
    mean: Resampled = lambda counts: counts @ array / counts.sum(axis=1)  # noqa: E731
    return _estimate(float(array.mean()), mean, len(array), SAMPLES, resampling_seed(array.tolist()), design)


def bootstrap_statistic(function: Resampled, examples: int, seed: int) -> Estimate:
    """Return a function of how often each example is drawn, at once each, with its bootstrap interval."""
    return _estimate(float(function(np.ones((1, examples)))[0]), function, examples, SAMPLES, seed)


def bootstrap_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate:
    """Return the sum of the numerators divided by that of the denominators, with its bootstrap interval.

    Each pair belongs to a group of examples that is drawn as a whole, such as the words of a sentence, of which
    `numerators` counts the hits and `denominators` all.
    """
    top, bottom = (np.asarray(values, dtype=np.float64) for values in (numerators, denominators))
    seed = resampling_seed([*top.tolist(), *bottom.tolist()])
    return bootstrap_statistic(lambda counts: counts @ top / (counts @ bottom), len(top), seed)


def bootstrap_mean_of_groups(values: Sequence[float], groups: Sequence[int]) -> Estimate:
    """Return the mean of one value per example with its bootstrap interval; the examples of a group are drawn together.

    `groups` has the number of the group of each example, such as the sentence of a word.
    """
    _, group = np.unique(groups, return_inverse=True)
    sums = np.bincount(group, weights=np.asarray(values, dtype=np.float64))
    return bootstrap_ratio(sums.tolist(), np.bincount(group).astype(np.float64).tolist())


def bootstrap_auc(scores: Sequence[float], is_positive: Sequence[bool]) -> Estimate:
    """Return how often a positive example scores higher than a negative one, with its bootstrap interval.

    This is the area under the ROC curve. A tie counts a half. It is not defined without positives or negatives.
    """
    values, positive = np.asarray(scores, dtype=np.float64), np.asarray(is_positive, dtype=bool)
    if positive.all() or not positive.any():
        return Estimate(None)
    wins = np.sign(values[positive][:, None] - values[~positive][None]) / 2 + 0.5

    def area(counts: Floats) -> Floats:
        some, others = counts[:, positive], counts[:, ~positive]
        with np.errstate(invalid="ignore"):  # a resample of one class only has no value
            return np.asarray(((some @ wins) * others).sum(1) / (some.sum(1) * others.sum(1)))

    return bootstrap_statistic(area, len(values), resampling_seed([*values.tolist(), *positive.tolist()]))


def wilson(hits: float, total: int) -> Estimate:
    """Return a fraction with its 95 % interval, which is not empty where all or none are hits; a tie is half a hit.

    Paper: Wilson 1927
    """
    if total == 0:
        return Estimate(None)
    fraction, denominator = hits / total, 1 + NORMAL_95**2 / total
    middle = (fraction + NORMAL_95**2 / (2 * total)) / denominator
    half = NORMAL_95 / denominator * math.sqrt(fraction * (1 - fraction) / total + NORMAL_95**2 / (4 * total**2))
    return Estimate(fraction, max(0.0, middle - half), min(1.0, middle + half))


def _estimate(
    value: float, function: Resampled, examples: int, samples: int, seed: int, design: CrossedDesign | None = None
) -> Estimate:
    samples = min(samples, max(_FEWER_SAMPLES, _MOST_DRAWS // examples))
    drawn: Floats = scores_on_resamples([function], examples, samples, seed, design)[0]
    drawn = drawn[np.isfinite(drawn)]
    if not math.isfinite(value) or not len(drawn):
        return Estimate(value if math.isfinite(value) else None)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(value, float(low), float(high))
