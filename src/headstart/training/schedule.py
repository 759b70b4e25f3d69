"""The learning rate as a function of the fraction of the budget that is used."""

from __future__ import annotations

import math

TRAPEZOID_DECAY = 0.2
"""Fraction of the budget over which the trapezoid decays (Zhai et al. 2022 and Hägele et al. 2024 use about this)."""

SLANT_RATIO = 32
"""Ratio of the peak rate to the lowest rate of the slanted triangle (Howard & Ruder 2018, ULMFiT)."""


def rate_factor(fraction: float, kind: str, warmup: float) -> float:
    """Return the factor in [0, 1] on the peak learning rate: linear warmup, then the named shape.

    The slanted triangle is linear too, but starts and ends at 1/32 of its peak, not at 0.
    """
    fraction = min(max(fraction, 0.0), 1.0)
    if kind == "slanted_triangular":
        return (1 + rate_factor(fraction, "linear", warmup) * (SLANT_RATIO - 1)) / SLANT_RATIO
    if fraction < warmup:
        return fraction / warmup
    rest = (fraction - warmup) / (1 - warmup)
    match kind:
        case "linear":
            return 1 - rest
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * rest))
        case "trapezoid":
            return min(1.0, (1 - fraction) / min(TRAPEZOID_DECAY, 1 - warmup))
        case "constant":
            return 1.0
    raise ValueError(f"unknown schedule {kind!r}")
