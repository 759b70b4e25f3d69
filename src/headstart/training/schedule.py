"""The learning rate as a function of the share of the budget that is spent."""

from __future__ import annotations

import math

TRAPEZOID_DECAY = 0.2
"""Share of the budget over which the trapezoid falls (Zhai et al. 2022 and Hägele et al. 2024 use about this)."""

SLANT_RATIO = 32
"""How many times the peak's rate is the lowest one of the slanted triangle (Howard & Ruder 2018, ULMFiT)."""


def rate_factor(share: float, kind: str, warmup: float) -> float:
    """Return the factor in [0, 1] on the peak learning rate: a linear rise, then the named shape.

    The slanted triangle rises and falls in straight lines too, but starts and ends at a part of its peak, not at 0.
    """
    share = min(max(share, 0.0), 1.0)
    if kind == "slanted_triangular":
        return (1 + rate_factor(share, "linear", warmup) * (SLANT_RATIO - 1)) / SLANT_RATIO
    if share < warmup:
        return share / warmup
    rest = (share - warmup) / (1 - warmup)
    match kind:
        case "linear":
            return 1 - rest
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * rest))
        case "trapezoid":
            return min(1.0, (1 - share) / min(TRAPEZOID_DECAY, 1 - warmup))
        case "constant":
            return 1.0
    raise ValueError(f"no schedule {kind!r}")
