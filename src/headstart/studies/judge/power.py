"""Estimate how likely a difference of a given size is to be confirmed, and how many seeds and examples that takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from headstart.core import randomness
from headstart.core.data import Bools
from headstart.core.errors import DataError
from headstart.evaluation.metrics import Floats
from headstart.evaluation.significance import LEVEL

TARGET = 0.8
"""The power that is aimed at: a true difference is confirmed in four of five studies."""
MOST_SEEDS = 200
"""Numbers of seeds beyond this are out of reach."""
_DRAWS = 8000
_ENUMERATED = 12
"""Up to this many units all sign patterns are enumerated; beyond it the sign-flip test agrees with Student's."""
_MOST_SPREADS = 100
"""A difference of more than 100 times the spread is not searched for."""


@dataclass(frozen=True)
class Spread:
    """What makes differences vary."""

    sd: float
    """Standard deviation of the paired difference over seeds."""
    examples_error: float = 0.0
    """Standard error from the choice of test examples, which more seeds do not reduce."""
    residual: float = 0.0
    """What the choice of examples adds to one paired run; `sd` includes it."""
    per_seed: int = 1
    """Independent units per seed: sets of training rows."""
    claims: float = 1
    """Claims that are tested together: each gets the level divided by this number, as in Holm's first step.

    A test that has only a share of the level counts for as many claims more.
    """

    def with_examples(self, factor: float) -> Spread:
        """Return the spread with `factor` times as many test examples."""
        seeds_alone = max(0.0, self.sd**2 - self.residual**2)
        return replace(
            self, sd=math.sqrt(seeds_alone + self.residual**2 / factor), residual=self.residual / math.sqrt(factor),
            examples_error=self.examples_error / math.sqrt(factor),
        )  # fmt: skip


def power(difference: float, spread: Spread, seeds: int, draws: int = _DRAWS) -> float:
    """Return the probability that a true difference is confirmed, by simulating studies and judging each.

    Differences over seeds are drawn from a normal distribution. A simulated study is judged by the two tests of
    `evaluation.comparison`: sign flips over its units, and the bootstrap over seeds and examples, whose width is
    computed by its formula.
    """
    from scipy import stats

    units = seeds * spread.per_seed
    if units < 2:
        return 0.0
    level = LEVEL / spread.claims
    rng = randomness.generator(0, 0, units, "power")
    by_examples = spread.examples_error * rng.standard_normal((draws, 1))
    differences = difference + by_examples + spread.sd * rng.standard_normal((draws, units))
    mean, sd = differences.mean(axis=1), differences.std(axis=1)
    width = np.sqrt((sd**2 + spread.residual**2) / units + spread.examples_error**2)
    passes_bootstrap = mean >= stats.norm.ppf(1 - level) * width
    return float(np.mean(passes_bootstrap & (mean > 0) & _passes_sign_flips(differences, level)))


def _passes_sign_flips(differences: Floats, level: float) -> Bools:
    """Return for each simulated study (draws, units) whether its one-sided sign-flip test reaches the level."""
    from scipy import stats

    draws, units = differences.shape
    if units > _ENUMERATED:
        error = differences.std(axis=1, ddof=1) / math.sqrt(units)
        return np.asarray(differences.mean(axis=1) >= stats.t.ppf(1 - level, units - 1) * error)
    signs = 1.0 - 2.0 * ((np.arange(2**units)[:, None] >> np.arange(units)) & 1)
    total = differences.sum(axis=1)
    passes = np.zeros(draws, dtype=bool)
    for start in range(0, draws, 1000):
        rows = slice(start, start + 1000)
        tolerance = 1e-12 * np.abs(differences[rows]).sum(axis=1, keepdims=True)
        hits = differences[rows] @ signs.T >= total[rows, None] - tolerance
        passes[rows] = hits.mean(axis=1) <= level
    return passes


def seeds_needed(difference: float, spread: Spread, target: float = TARGET) -> int | None:
    """Return the fewest seeds that reach the target power; None where 200 seeds do not.

    More seeds do not help where the test examples are too few to resolve the difference.
    """
    if difference <= 0:
        return None
    low, high = 1, 2
    while power(difference, spread, high) < target:
        low, high = high, high * 2
        if low >= MOST_SEEDS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(difference, spread, middle) >= target else (middle, high)
    return high


def smallest_difference(spread: Spread, seeds: int, target: float = TARGET) -> float | None:
    """Return the smallest true difference that this many seeds confirm with the target power; None where none is."""
    if spread.sd < 0 or spread.examples_error < 0:
        raise DataError("a spread is negative", allowed="Standard deviations are 0 or more")
    unit = math.hypot(spread.sd, spread.examples_error) or 1.0
    low, high = 0.0, unit
    while power(high, spread, seeds) < target:
        low, high = high, high * 2
        if high > _MOST_SPREADS * unit:
            return None
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, spread, seeds) >= target else (middle, high)
    return high
