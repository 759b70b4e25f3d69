"""Test whether two systems are equally good, up to a margin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from headstart.evaluation.comparison import PairedScores, compare


def equivalence(pairs: Sequence[PairedScores], margin: float) -> tuple[float, float]:
    """Return the p-values for a difference within ± margin and for one beyond it.

    Two one-sided tests: the difference is within the margin if it is both above the lower end and below the upper one,
    so the larger p-value counts. It is beyond the margin on either side, so the smaller one counts, doubled. Each
    one-sided test is that of `compare`, on differences that were shifted by the margin.
    Paper: Schuirmann 1987
    """
    over_lower, over_upper = (compare([_shifted(pair, by) for pair in pairs]) for by in (margin, -margin))
    if over_lower is None or over_upper is None:
        return 1.0, 1.0
    within = max(over_lower.p_better, over_upper.p_worse)
    return within, min(1.0, 2 * min(over_upper.p_better, over_lower.p_worse))


def _shifted(pair: PairedScores, by: float) -> PairedScores:
    """Add a constant to all differences. Then few differing answers no longer limit the p-value."""
    return replace(
        pair,
        differences={seed: value + by for seed, value in pair.differences.items()},
        resampled={seed: values + by for seed, values in pair.resampled.items()},
        discordant=math.inf,
    )
