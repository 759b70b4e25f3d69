"""FineWeb's quality rules, found by comparing good text with bad: line ends, repeated lines, short lines."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from headstart.core.config import Section
from headstart.corpus.clean.rules import Rule, Values, at_least, at_most, ratio


class FineWeb(Section):
    """Thresholds of FineWeb's rules, as published."""

    paper: ClassVar[str] = "Penedo et al. 2024, FineWeb, section 3.6"
    counts: ClassVar[tuple[str, ...]] = (
        "lines", "lines with an end", "short lines", "distinct lines", "characters in lines",
        "characters in distinct lines",
    )  # fmt: skip

    min_ended_lines: float = Field(0.12, ge=0, le=1, description="minimum fraction of lines that end with punctuation")
    max_repeated: float = Field(0.1, ge=0, le=1, description="maximum fraction of characters in repeated lines")
    max_short_lines: float = Field(0.67, ge=0, le=1, description="maximum fraction of lines under 30 characters")

    def rules(self) -> list[Rule]:
        """Return the rules in the order in which they are applied."""
        return [
            at_least("fineweb.line_ends", "share of lines with an end", self.min_ended_lines),
            at_most("fineweb.repeated_lines", "share of characters in repeated lines", self.max_repeated),
            at_most("fineweb.short_lines", "share of short lines", self.max_short_lines),
        ]

    @staticmethod
    def measures(counts: Values) -> Values:
        """Compute the measures that the rules compare with their thresholds."""
        inside = counts["characters in lines"]
        return {
            "share of lines with an end": ratio(counts["lines with an end"], counts["lines"]),
            "share of characters in repeated lines": ratio(inside - counts["characters in distinct lines"], inside),
            "share of short lines": ratio(counts["short lines"], counts["lines"]),
        }
