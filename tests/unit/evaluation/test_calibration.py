"""Reliability bins and the expected calibration error."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from headstart.core.errors import DataError
from headstart.evaluation.calibration import calibration


def test_by_hand():
    """Bins (0.5, 0.6] with 0.55 and 0.6, and (0.9, 1.0] with 0.95 and 1.0."""
    found = calibration([0.55, 0.6, 0.95, 1.0], [True, False, True, True])
    assert [(part.low, part.high, part.rows) for part in found.bins] == [(0.5, 0.6, 2), (0.9, 1.0, 2)]
    assert [part.confidence for part in found.bins] == pytest.approx([0.575, 0.975])
    assert [part.accuracy.value for part in found.bins] == [0.5, 1.0]
    assert found.error == pytest.approx((2 * 0.075 + 2 * 0.025) / 4)
    assert (found.confidence, found.accuracy) == pytest.approx((0.775, 0.75))


def test_the_bins_are_those_of_sklearn():
    rng = np.random.default_rng(0)
    confidences = rng.random(500)
    correct = rng.random(500) < confidences**2
    found = calibration(confidences.tolist(), correct.tolist())
    accuracy, confidence = calibration_curve(correct, confidences, n_bins=10)
    assert [part.accuracy.value for part in found.bins] == pytest.approx(accuracy.tolist())
    assert [part.confidence for part in found.bins] == pytest.approx(confidence.tolist())
    assert found.error == pytest.approx(
        sum(part.rows * abs(a - c) for part, a, c in zip(found.bins, accuracy, confidence, strict=True)) / 500
    )


def test_the_ends_belong_to_the_outer_bins():
    found = calibration([0.0, 1.0], [False, True])
    assert [(part.low, part.rows) for part in found.bins] == [(0.0, 1), (0.9, 1)] and found.error == 0.0


@pytest.mark.parametrize(("confidences", "correct"), [([], []), ([0.5], [])])
def test_nothing_to_calibrate_is_refused(confidences, correct):
    with pytest.raises(DataError, match="one confidence per prediction"):
        calibration(confidences, correct)
