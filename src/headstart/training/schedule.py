"""The learning rate as a function of the share of the budget that is spent."""

from __future__ import annotations

import math

TRAPEZOID_DECAY = 0.2
"""Share of the budget over which the trapezoid falls (Zhai et al. 2022 and Hägele et al. 2024 use about this)."""


def rate_factor(share: float, kind: str, warmup: float) -> float:
    """Return the factor in [0, 1] on the peak learning rate: a linear rise, then the named shape."""
    share = min(max(share, 0.0), 1.0)
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
