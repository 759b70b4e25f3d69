"""What is known about the lead of a method before it runs, and what trying it is expected to gain.

The leads are those of `docs/results/few-labels` (one encoder, six data sets, 16 to 1,000 labels), and are not used
with more labels. The mean is their median; the standard deviation is the distance from it to their quantile of 84 %,
and at least 6.5 points, because another checkpoint may differ. With hundreds of held-out rows, the measured lead
outweighs them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from headstart.evaluation.comparison import Comparison
from headstart.evaluation.intervals import NORMAL_95

_STANDARD = NormalDist()
_LEAST_DISAGREEMENT = 0.02
"""The share of rows on which two methods differ, at least: few rows may show none by chance."""


@dataclass(frozen=True)
class Belief:
    """A normal distribution of a lead, as a fraction."""

    mean: float
    sd: float

    def after(self, lead: Comparison) -> Belief:
        """Return the distribution after a lead was measured."""
        least = math.sqrt(_LEAST_DISAGREEMENT / max(1, lead.examples))
        error = max((lead.high - lead.low) / (2 * NORMAL_95), least)
        precision = 1 / self.sd**2 + 1 / error**2
        return Belief((self.mean / self.sd**2 + lead.difference / error**2) / precision, precision**-0.5)

    def expected_gain(self, error: float) -> float:
        """Return what a measurement with a standard error is expected to gain, if a method without a lead is dropped.

        It is the mean of the positive part of the later mean. The less a measurement can tell, the less it gains.
        """
        spread = self.sd**2 / math.hypot(self.sd, error)
        z = self.mean / spread
        return spread * _STANDARD.pdf(z) + self.mean * _STANDARD.cdf(z)


MOST_LABELS = 1000
"""The largest number of labels of the study."""
Priors = Mapping[tuple[str, str], Belief]
"""Method and the method that it is compared with → the lead."""

PRIORS: Priors = {
    ("contrast", "svm"): Belief(0.14, 0.14),
    ("contrast", "static"): Belief(0.12, 0.16),
    ("contrast", "linear_probe"): Belief(0.06, 0.07),
    ("lora", "svm"): Belief(0.09, 0.08),
    ("lora", "static"): Belief(0.07, 0.065),
    ("lora", "linear_probe"): Belief(0.02, 0.065),
    ("lora", "contrast"): Belief(-0.04, 0.065),
    ("full", "svm"): Belief(0.09, 0.07),
    ("full", "static"): Belief(0.08, 0.065),
    ("full", "linear_probe"): Belief(0.02, 0.065),
    ("full", "contrast"): Belief(-0.06, 0.065),
    ("full", "lora"): Belief(0.01, 0.065),
}


def measurement_error(score: float, rows: int) -> float:
    """Return the standard error of a lead over a method with this score, measured on so many rows.

    The two methods are taken to be right on a row with a correlation of one half.
    """
    return math.sqrt(max(score * (1 - score), _LEAST_DISAGREEMENT) / max(1, rows))
