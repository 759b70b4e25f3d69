"""Is the difference real? Intervals over seeds, paired tests over examples and over seeds, and Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headstart.core import randomness
from headstart.core.errors import DataError
from headstart.evaluation.metrics import Floats
from headstart.evaluation.resampling import draw, resampled

_EXACT_SEEDS = 16
"""2^16 sign patterns are enumerated at once; beyond that as many are drawn."""


@dataclass(frozen=True)
class Interval:
    """Scores over seeds: mean, standard deviation (n - 1) and the 95 % t interval of the mean.

    One score says nothing about its spread: `sd`, `low` and `high` are None then, which is not the same
    as a spread of nought.
    """

    mean: float
    sd: float | None
    low: float | None
    high: float | None
    seeds: int


@dataclass(frozen=True)
class Comparison:
    """How far system a stands above system b on the same test examples, and how sure that is."""

    difference: float
    low: float
    high: float
    p_value: float
    seeds: int
    examples: int


def format_p(value: float) -> str:
    """Write a p-value for a table: `0.012`, or `< 0.001`."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def describe_p(value: float) -> str:
    """Write a p-value for a sentence: `p = 0.012`, or `p < 0.001`."""
    told = format_p(value)
    return f"p {told}" if told.startswith("<") else f"p = {told}"


def interval(scores: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the mean of scores over seeds with its Student t interval."""
    from scipy import stats

    if not scores:
        raise DataError("there are no scores to average", do="Give one score per seed")
    values = np.asarray(scores, dtype=np.float64)
    mean = float(values.mean())
    if len(values) == 1:
        return Interval(mean, None, None, None, 1)
    sd = float(values.std(ddof=1))
    half = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1)) * sd / math.sqrt(len(values))
    return Interval(mean, sd, mean - half, mean + half, len(values))


def paired_bootstrap(
    gold: Sequence[Any],
    a_runs: Sequence[Sequence[Any]],
    b_runs: Sequence[Sequence[Any]],
    metric: str,
    samples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Compare two systems, each run with the same seeds, by resampling the test examples.

    The statistic is the mean over seeds of metric(a) - metric(b). A single run on one side, as a baseline
    without chance has, stands against every run of the other. The interval holds the middle 95 % of the
    resampled differences; the two-sided p-value is the share of resamples that stray from the observed
    difference by at least its own size, the observed one counted in, so it is never below 1/(samples + 1); nor below
    2/2^k where the systems answer k examples otherwise, which is all that a sign test could say of so few.

    It asks whether these trained models would differ on further examples of the same kind. Whether further
    seeds would is the question of `permutation_over_seeds`.
    Paper: Efron & Tibshirani 1993; Berg-Kirkpatrick et al. 2012
    """
    seeds = max(len(a_runs), len(b_runs))
    if not a_runs or not b_runs or {len(a_runs), len(b_runs)} - {1, seeds}:
        raise DataError(
            f"system a has {len(a_runs)} runs and system b {len(b_runs)}",
            allowed="A paired comparison needs the same seeds on both sides, or a single run on one side",
        )
    values = resampled(metric, gold, [*a_runs, *b_runs])
    a_values, b_values = values[: len(a_runs)], values[len(a_runs) :]

    def difference(counts: Floats) -> Floats:
        a_mean, b_mean = (np.mean([value(counts) for value in side], axis=0) for side in (a_values, b_values))
        return np.asarray(a_mean - b_mean)

    observed = float(difference(np.ones((1, len(gold))))[0])
    differences = np.concatenate([difference(counts) for counts in draw(len(gold), samples, seed)])
    low, high = np.quantile(differences, [0.025, 0.975])
    strays = int(np.sum(np.abs(differences - observed) >= abs(observed) - 1e-12))
    pairs = _pairs(a_runs, b_runs)
    unlike = sum(any(a[i] != b[i] for a, b in pairs) for i in range(len(gold)))
    p_value = max((strays + 1) / (samples + 1), min(1.0, 2 * 0.5 ** min(unlike, 64)))
    return Comparison(observed, float(low), float(high), p_value, seeds, len(gold))


def _pairs(a_runs: Sequence[Sequence[Any]], b_runs: Sequence[Sequence[Any]]) -> list[tuple[Any, Any]]:
    """Pair runs by seed; a single run stands against each of the other side."""
    seeds = max(len(a_runs), len(b_runs))
    return [(a_runs[seed % len(a_runs)], b_runs[seed % len(b_runs)]) for seed in range(seeds)]


def permutation_over_seeds(a_scores: Sequence[float], b_scores: Sequence[float], seed: int = 0) -> float:
    """Return the two-sided p-value of the sign-flip test on scores that are paired by seed.

    If a and b were alike, each seed's difference could as well have had the other sign. All 2^n patterns are
    tried up to 16 seeds, 65,536 random ones beyond. With n seeds no p-value can be below 2/2^n: three seeds
    can never reach 0.05, six can.
    Paper: Fisher 1935
    """
    if len(a_scores) != len(b_scores) or not a_scores:
        raise DataError(
            f"there are {len(a_scores)} scores of a and {len(b_scores)} of b",
            allowed="Scores are paired: one of each per seed",
        )
    differences = np.asarray(a_scores, dtype=np.float64) - np.asarray(b_scores, dtype=np.float64)
    n = len(differences)
    tolerance = 1e-12 * max(1.0, float(np.abs(differences).sum()))
    if n <= _EXACT_SEEDS:
        signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
        return float(np.mean(np.abs(signs @ differences) >= abs(differences.sum()) - tolerance))
    drawn = randomness.generator(seed, 0, 0, "sign flips").integers(0, 2, size=(2**_EXACT_SEEDS, n))
    hits = int(np.sum(np.abs((1 - 2 * drawn) @ differences) >= abs(differences.sum()) - tolerance))
    return (hits + 1) / (len(drawn) + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values of several comparisons so that the chance of any false claim stays below the level.

    Paper: Holm 1979
    """
    wrong = [p for p in p_values if not 0.0 <= p <= 1.0]
    if wrong:
        raise DataError(f"a p-value is {wrong[0]}", allowed="It must lie in [0, 1]")
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = highest
    return adjusted
