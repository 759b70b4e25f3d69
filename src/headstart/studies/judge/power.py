"""How likely a difference of a given size is to be confirmed, and how many seeds and examples that takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from headstart.core import randomness
from headstart.core.errors import DataError
from headstart.evaluation.metrics import Floats

LEVEL = 0.05
WANTED = 0.8
_DRAWS = 8000
_ENUMERATED = 12
"""Sign patterns are enumerated up to so many units; beyond, the sign-flip test is as good as Student's."""
_MOST_SEEDS = 200


@dataclass(frozen=True)
class Spread:
    """What makes differences vary."""

    sd: float
    """Standard deviation of the paired difference over seeds."""
    examples_error: float = 0.0
    """Standard error by the choice of test examples, which no number of seeds averages out."""
    residual: float = 0.0
    """What the choice of examples adds to one paired run; `sd` holds it already."""
    per_seed: int = 1
    """Independent units that a seed gives: sets of training rows."""
    claims: int = 1
    """How many claims are tested together: each has the level divided by so many, as Holm's first has."""

    def with_examples(self, factor: float) -> Spread:
        """Return the spread with so many times as many test examples."""
        seeds_alone = max(0.0, self.sd**2 - self.residual**2)
        return replace(
            self, sd=math.sqrt(seeds_alone + self.residual**2 / factor), residual=self.residual / math.sqrt(factor),
            examples_error=self.examples_error / math.sqrt(factor),
        )  # fmt: skip


def power(difference: float, spread: Spread, seeds: int, draws: int = _DRAWS) -> float:
    """Return the chance that a true difference is confirmed, by drawing studies and judging each by the same rule.

    Differences over seeds are drawn as normal. A study is judged by sign flips over its units and by the bootstrap
    over seeds and examples, for whose width its formula stands.
    """
    from scipy import stats

    units = seeds * spread.per_seed
    if units < 2:
        return 0.0
    level = LEVEL / spread.claims
    chance = randomness.generator(0, 0, units, "power")
    by_examples = spread.examples_error * chance.standard_normal((draws, 1))
    found = difference + by_examples + spread.sd * chance.standard_normal((draws, units))
    mean, sd = found.mean(axis=1), found.std(axis=1)
    width = np.sqrt((sd**2 + spread.residual**2) / units + spread.examples_error**2)
    sure_of_both = mean >= stats.norm.ppf(1 - level) * width
    return float(np.mean(sure_of_both & (mean > 0) & _sure_of_seeds(found, level)))


def _sure_of_seeds(found: Floats, level: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    from scipy import stats

    draws, units = found.shape
    if units > _ENUMERATED:
        error = found.std(axis=1, ddof=1) / math.sqrt(units)
        return np.asarray(found.mean(axis=1) >= stats.t.ppf(1 - level, units - 1) * error)
    signs = 1.0 - 2.0 * ((np.arange(2**units)[:, None] >> np.arange(units)) & 1)
    total = found.sum(axis=1)
    sure = np.zeros(draws, dtype=bool)
    for start in range(0, draws, 1000):
        some = slice(start, start + 1000)
        hits = found[some] @ signs.T >= total[some, None] - 1e-12 * np.abs(found[some]).sum(axis=1, keepdims=True)
        sure[some] = hits.mean(axis=1) <= level
    return sure


def seeds_needed(difference: float, spread: Spread, wanted: float = WANTED) -> int | None:
    """Return the fewest seeds that give the wanted power; None where no number in reach does.

    More seeds do not help where the test examples are too few to tell the difference.
    """
    if difference <= 0:
        return None
    low, high = 1, 2
    while power(difference, spread, high) < wanted:
        low, high = high, high * 2
        if low >= _MOST_SEEDS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(difference, spread, middle) >= wanted else (middle, high)
    return high


def smallest_difference(spread: Spread, seeds: int, wanted: float = WANTED) -> float | None:
    """Return the smallest true difference that so many seeds confirm with the wanted power; None where none does."""
    if spread.sd < 0 or spread.examples_error < 0:
        raise DataError("a spread is negative", allowed="Standard deviations are 0 or more")
    unit = math.hypot(spread.sd, spread.examples_error) or 1.0
    low, high = 0.0, unit
    while power(high, spread, seeds) < wanted:
        low, high = high, high * 2
        if high > 100 * unit:
            return None
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, spread, seeds) >= wanted else (middle, high)
    return high
