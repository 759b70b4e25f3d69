"""Metrics for one number per example: Pearson and Spearman correlation."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headstart.core.errors import DataError
from headstart.evaluation.metrics import CORRELATION, Floats, Sums, metric, plain, same_length

_FLAT = 1e-12
"""Values scaled to variance 1 whose variance is below this are constant up to rounding errors."""


def numbers(gold: Sequence[Any], *predictions: Sequence[Any]) -> list[Floats]:
    """Return gold and any predictions as arrays of finite numbers."""
    sequences = [plain(gold), *map(plain, predictions)]
    same_length(sequences)
    arrays = []
    for role, sequence in zip(["gold", *["predicted"] * len(predictions)], sequences, strict=True):
        try:
            array = np.array([float(value) for value in sequence], dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"a {role} value is not a number ({error})", do="Use accuracy or f1 for labels") from error
        if not np.isfinite(array).all():
            index = int(np.flatnonzero(~np.isfinite(array))[0])
            raise DataError(f"{role} value {index} is {array[index]}", allowed="A correlation needs finite numbers")
        arrays.append(array)
    return arrays


def correlation_of(covariance: Floats, left: Floats, right: Floats) -> Floats:
    """Return covariances over the spreads of both sides, and zero where one side is constant."""
    defined = (left > _FLAT) & (right > _FLAT)
    scale = np.sqrt(np.where(defined, left * right, 1.0))
    return np.where(defined, covariance / scale, 0.0)


def _scale(values: Floats) -> Floats:
    spread = values.std()
    return (values - values.mean()) / spread if spread > _FLAT * max(1.0, float(np.abs(values).max())) else values * 0.0


def _products(gold: Sequence[Any], predicted: Sequence[Any]) -> Floats:
    g, p = (_scale(values) for values in numbers(gold, predicted))
    return np.column_stack([g, p, g * g, p * p, g * p, np.ones(len(g))])


def _pearson(sums: Floats) -> Floats:
    g, p, gg, pp, gp = (sums[:, :5] / sums[:, 5:]).T
    return correlation_of(gp - g * p, gg - g * g, pp - p * p)


@metric("number", sums=Sums(_products, _pearson), family=CORRELATION)
def pearson(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Pearson correlation of predicted and gold numbers.

    It is undefined where the numbers of either side are constant. It is 0.0 then, because a constant prediction carries
    no information about the order of the gold values (and a mean over NaN is NaN).
    Paper: Pearson 1895
    """
    from scipy.stats import pearsonr

    return _correlation(pearsonr, gold, predicted)


@metric("number", family=CORRELATION)
def spearman(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Spearman rank correlation of predicted and gold numbers; ties share their mean rank.

    It is 0.0 where the numbers of either side are constant, for the reason given in `pearson`.
    Paper: Spearman 1904
    """
    from scipy.stats import spearmanr

    return _correlation(spearmanr, gold, predicted)


def _correlation(function: Callable[..., Any], gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    gold_values, predicted_values = numbers(gold, predicted)
    if len(gold_values) < 2:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = float(function(gold_values, predicted_values).statistic)
    return 0.0 if math.isnan(value) else value
