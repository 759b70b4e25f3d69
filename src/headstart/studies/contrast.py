"""Parse a claim's contrast: `masked_lm > causal_lm on probe.minimal_pairs`, or `lora = full within 1.0`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORM = re.compile(
    r"^\s*(?P<better>[^\s<>=≈]+)\s*(?:(?P<sign>[<>])\s*(?P<worse>[^\s<>=≈]+)"
    r"|[=≈]\s*(?P<equal>[^\s<>=≈]+)\s+within\s+(?P<margin>\d+(?:\.\d+)?))"
    r"(?:\s+on\s+(?:mean\((?P<metric>\w+)\)|(?P<outcome>probe\.\w+(?:\.\w+)?)"
    r"|tokens_to\(\s*(?P<curve>\w+)\s*,\s*(?P<level>\d+(?:\.\d+)?)\s*\)))?\s*$"
)
PROBE = "probe"


@dataclass(frozen=True)
class Contrast:
    """Two sides, each given by the levels that a system must have, and what is compared."""

    better: tuple[str, ...]
    worse: tuple[str, ...]
    metric: str
    margin: float | None = None
    """The largest difference that counts as none, in the unit of the tables; None if the first side shall be better."""
    outcome: str = ""
    """What is compared instead of a metric of the task: `probe.minimal_pairs`, `tokens_to(loss, 3.5)`."""
    level: float | None = None
    """The value that `metric` shall reach on held-out text, if the tokens until then are compared."""

    @classmethod
    def parse(cls, text: str) -> Contrast:
        """Read `a > b` or `a = b within 1.0`, levels joined by / on each side.

        `on mean(metric)` at the end names another metric than the first one, `on probe.name` a probe, and
        `on probe.name.measure` a figure of a probe by the words that its name begins with, joined by _.
        `a < b on tokens_to(loss, 3.5)` compares the tokens that pre-training reads until a held-out value is reached.
        """
        match = _FORM.match(text)
        # Fewer tokens are better, so only these are compared by <.
        if (
            match is None
            or (match["margin"] and not float(match["margin"]))
            or ((match["sign"] == "<") != (match["curve"] is not None))
        ):
            raise ValueError(
                "it must read `one > other`, or `one = other within 1.0` with a margin above 0, levels joined by /; "
                "` on mean(score)` or ` on probe.minimal_pairs` may follow. Tokens are compared by "
                "`one < other on tokens_to(loss, 3.5)`."
            )
        better, worse = (tuple(side.split("/")) for side in (match["better"], match["worse"] or match["equal"]))
        margin = None if match["margin"] is None else float(match["margin"])
        if match["curve"] is not None:
            level = float(match["level"])
            return cls(better, worse, match["curve"], None, f"tokens_to({match['curve']}, {level:g})", level)
        return cls(better, worse, match["metric"] or "score", margin, match["outcome"] or "")

    @property
    def parts(self) -> list[str]:
        """Return every level and baseline that it names."""
        return [*self.better, *self.worse]

    @property
    def probe(self) -> str | None:
        """Return the probe that it compares; None where it compares something else."""
        parts = self.outcome.split(".")
        return parts[1] if parts[0] == PROBE else None
