"""A learning curve and its band: the band contains the truth in about nine of ten simulated curves."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.studies.advise.extrapolate import CurvePoint, fit

SIZES = (32, 64, 128, 256)


def simulated(rng: np.random.Generator, noise: float):
    """Return a random power law and noisy scores of it, in three rounds with held-out rows of different difficulty."""
    exponent, top = rng.uniform(0.2, 1.0), rng.uniform(0.7, 0.95)
    factor = rng.uniform(0.1, 0.5) * 50**exponent

    def truth(rows: float) -> float:
        return top - factor * rows**-exponent

    offsets = rng.normal(0, 0.02, 3)
    points = [
        CurvePoint(rows, number, truth(rows) + offsets[number] + rng.normal(0, noise), error=0.02)
        for rows in SIZES for number in range(3)
    ]  # fmt: skip
    return truth, points


@pytest.mark.parametrize("noise", [0.005, 0.015, 0.04])
def test_the_band_contains_the_truth_in_nine_of_ten_draws(noise):
    rng = np.random.default_rng(3)
    draws, gains, scores = 200, 0, 0
    for _ in range(draws):
        truth, points = simulated(rng, noise)
        curve = fit(points)
        assert curve is not None
        gain, score = curve.gain(256, 356), curve.score(1000)
        gains += gain.low <= truth(356) - truth(256) <= gain.high
        scores += score.low <= truth(1000) <= score.high
    # Two standard errors of 200 draws are 0.04.
    assert gains / draws >= 0.85 and scores / draws >= 0.85


def test_more_scores_give_a_narrower_band():
    truth, points = simulated(np.random.default_rng(1), 0.015)
    more = [*points, *(CurvePoint(512, number, truth(512)) for number in range(3))]
    few, many = fit(points), fit(more)
    assert few is not None and many is not None
    assert many.score(1000).high - many.score(1000).low < few.score(1000).high - few.score(1000).low


def test_a_falling_or_flat_curve_promises_nothing():
    curve = fit([CurvePoint(rows, number, 0.8 - rows / 1000) for rows in SIZES for number in range(3)])
    assert curve is not None
    assert 0 <= curve.gain(256, 356).low <= curve.gain(256, 356).high < 0.01


def test_too_few_scores_are_not_fitted():
    assert fit([CurvePoint(32, 0, 0.5), CurvePoint(64, 0, 0.6)]) is None
    assert fit([CurvePoint(rows, number, 0.5) for rows in (32, 64) for number in range(3)]) is None
