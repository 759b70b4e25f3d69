"""A learning curve over the number of labels, continued beyond them with an error band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headstart.core import randomness
from headstart.evaluation.metrics import Floats

BAND = 0.9
"""The probability that the band is meant to contain the truth with."""
_EXPONENTS = np.linspace(-0.1, 1.0, 22)
"""Chosen on SST-2, SST-5 and CLINC150, which the table of docs/results/extrapolation.md does not use.

At 0, which the grid leaves out, the score rises with the logarithm of the rows; with many classes it rises faster.
"""
_DRAWS = 4000
_FEWEST = 6
"""Scores below which three unknowns and the noise cannot be estimated."""


@dataclass(frozen=True)
class CurvePoint:
    """The score of one run; runs of one round share their held-out rows."""

    rows: int
    round: int
    score: float
    """A score of which higher is better."""
    error: float = 0.0
    """The standard error of the score as an estimate for all rows, from the number of held-out rows of the round."""


@dataclass(frozen=True)
class Gain:
    """What further labels are expected to add to a score, with the band of 90 %."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class FittedCurve:
    """Draws from the posterior distribution of score = level - b · rows^-c."""

    exponents: Floats
    levels: Floats
    gains: Floats
    """By how much the score rises from the fewest to the most rows of the fit."""
    fewest: int
    most: int

    def score(self, rows: float) -> Gain:
        """Return the expected score at a number of rows."""
        return self._summary(self.levels + self.gains * self._shape(rows))

    def gain(self, before: float, after: float) -> Gain:
        """Return by how much the expected score rises between two numbers of rows."""
        return self._summary(self.gains * (self._shape(after) - self._shape(before)))

    def _shape(self, rows: float) -> Floats:
        return shape(rows, self.exponents, self.fewest, self.most)

    def _summary(self, values: Floats) -> Gain:
        low, middle, high = np.quantile(values, [(1 - BAND) / 2, 0.5, (1 + BAND) / 2])
        return Gain(float(middle), float(low), float(high))


def shape(rows: float, exponents: Floats, fewest: int, most: int) -> Floats:
    """Return the power law, scaled to be 0 at the fewest and 1 at the most rows of the fit."""
    start = np.float64(fewest) ** -exponents
    return (start - np.float64(rows) ** -exponents) / (start - np.float64(most) ** -exponents)


def fit(points: Sequence[CurvePoint]) -> FittedCurve | None:
    """Fit score = level of the round - b · rows^-c; None for fewer than six scores or three numbers of rows.

    Algorithm: for each exponent c of a grid the model is linear, and its posterior is known (flat priors for the levels
    and the gain over the fitted range, Jeffreys' prior for the noise). Exponents are drawn by their marginal
    likelihood, then noise, levels and gain; a negative gain is drawn again, because more labels do not harm on average.
    All scores of a round share the error of its held-out rows, which is added to the levels. All rounds draw from the
    same labels, so the errors of gain and levels are those of one round.
    Paper: Gelman et al. 2013, Bayesian Data Analysis, chapter 14 (the posterior of a linear model)
    """
    sizes = sorted({point.rows for point in points})
    if len(points) < _FEWEST or len(sizes) < 3:
        return None
    rounds = sorted({point.round for point in points})
    scores = np.array([point.score for point in points])
    dummies = np.array([[float(point.round == number) for number in rounds] for point in points])
    freedom = len(points) - len(rounds) - 1
    # The scores of few rows are discrete, and may all lie on the curve by chance.
    floor = 1e-6 * max(1.0, float(np.abs(scores).max())) ** 2
    fits = []
    for exponent in _EXPONENTS:
        column = [shape(point.rows, np.array([exponent]), sizes[0], sizes[-1])[0] for point in points]
        design = np.column_stack([dummies, column])
        inverse = np.linalg.inv(design.T @ design)
        coefficients = inverse @ design.T @ scores
        error = float(((scores - design @ coefficients) ** 2).sum()) + floor
        weight = 0.5 * np.linalg.slogdet(inverse)[1] - freedom / 2 * np.log(error)
        fits.append((coefficients, np.linalg.cholesky(len(rounds) * inverse), error, weight))
    errors = [np.mean([point.error for point in points if point.round == number]) for number in rounds]
    return _draw(fits, freedom, float(np.linalg.norm(errors)) / len(rounds), len(rounds), sizes)


def _draw(
    fits: Sequence[tuple[Floats, Floats, float, float]], freedom: int, level_error: float, rounds: int,
    sizes: Sequence[int],
) -> FittedCurve:  # fmt: skip
    """Draw exponents by weight, then noise, levels and gains."""
    rng = randomness.generator(0, 0, len(sizes), "learning curve")
    weights = np.exp(np.array([weight for *_, weight in fits]) - max(weight for *_, weight in fits))
    chosen = rng.choice(len(fits), size=_DRAWS, p=weights / weights.sum())
    noise = np.sqrt(np.array([fits[i][2] for i in chosen]) / rng.chisquare(freedom, size=_DRAWS))
    deviations = rng.standard_normal((_DRAWS, rounds + 1))
    drawn = np.stack([
        fits[i][0] + sd * (fits[i][1] @ deviation) for i, sd, deviation in zip(chosen, noise, deviations, strict=True)
    ])  # fmt: skip
    kept = drawn[:, -1] >= 0
    if not kept.any():
        # All draws fall: the best estimate is no gain.
        drawn[:, -1], kept = 0.0, np.ones(_DRAWS, dtype=bool)
    levels = drawn[:, :rounds].mean(axis=1) + level_error * rng.standard_normal(_DRAWS)
    return FittedCurve(_EXPONENTS[chosen[kept]], levels[kept], drawn[kept, -1], sizes[0], sizes[-1])
