"""Parse a claim's contrast: `masked_lm > causal_lm on mean(score)`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORM = re.compile(r"^\s*(?P<better>[^\s>]+)\s*>\s*(?P<worse>[^\s>]+)(?:\s+on\s+mean\((?P<metric>\w+)\))?\s*$")


@dataclass(frozen=True)
class Contrast:
    """Two sides, each given by the levels that a system must have, and the metric that is averaged."""

    better: tuple[str, ...]
    worse: tuple[str, ...]
    metric: str

    @classmethod
    def parse(cls, text: str) -> Contrast:
        """Read `a > b`, levels joined by / on each side, with `on mean(metric)` for another than the first metric."""
        match = _FORM.match(text)
        if match is None:
            raise ValueError("it must read `one > other` or `one > other on mean(score)`, levels joined by /.")
        better, worse = (tuple(match[side].split("/")) for side in ("better", "worse"))
        return cls(better, worse, match["metric"] or "score")

    @property
    def parts(self) -> list[str]:
        """Return every level and baseline that it names."""
        return [*self.better, *self.worse]
