"""FineWeb's rules of quality, found by comparing good text with bad: ends of lines, repeated lines, short lines."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from headstart.core.config import Section
from headstart.corpus.clean.rules import Rule, Values, at_least, at_most, share


class FineWeb(Section):
    """Thresholds of FineWeb's rules, as published."""

    paper: ClassVar[str] = "Penedo et al. 2024, FineWeb, section 3.6"
    counts: ClassVar[tuple[str, ...]] = (
        "lines", "lines with an end", "short lines", "distinct lines", "characters in lines",
        "characters in distinct lines",
    )  # fmt: skip

    min_ended_lines: float = Field(0.12, ge=0, le=1, description="share of lines that end with punctuation, at least")
    max_repeated: float = Field(0.1, ge=0, le=1, description="share of characters in lines that repeat one, at most")
    max_short_lines: float = Field(0.67, ge=0, le=1, description="share of lines under 30 characters, at most")

    def rules(self) -> list[Rule]:
        """Return the rules in the order in which they are asked."""
        return [
            at_least("fineweb.line_ends", "share of lines with an end", self.min_ended_lines),
            at_most("fineweb.repeated_lines", "share of characters in repeated lines", self.max_repeated),
            at_most("fineweb.short_lines", "share of short lines", self.max_short_lines),
        ]

    @staticmethod
    def measures(counts: Values) -> Values:
        """Return what the rules look at, from the counts."""
        inside = counts["characters in lines"]
        return {
            "share of lines with an end": share(counts["lines with an end"], counts["lines"]),
            "share of characters in repeated lines": share(inside - counts["characters in distinct lines"], inside),
            "share of short lines": share(counts["short lines"], counts["lines"]),
        }
