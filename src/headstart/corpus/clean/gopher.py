"""Gopher's quality rules: number and length of words, symbols, bullets, ellipses, stop words."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from headstart.core.config import Section
from headstart.corpus.clean.rules import Rule, Values, at_least, at_most, ratio


class Gopher(Section):
    """Thresholds of Gopher's rules, as published."""

    paper: ClassVar[str] = "Rae et al. 2021, Gopher, appendix A.1.1"
    counts: ClassVar[tuple[str, ...]] = (
        "characters", "words", "blanks", "words with a letter", "hashes", "ellipses", "stop words", "lines",
        "lines with a bullet", "lines with an ellipsis",
    )  # fmt: skip

    min_words: int = Field(50, ge=0, description="minimum number of words")
    max_words: int = Field(
        100_000, ge=1, description="maximum number of words, against lists and dumps; a novel has more"
    )
    min_word_length: float = Field(3, ge=0, description="minimum mean length of a word, in characters")
    max_word_length: float = Field(10, gt=0, description="maximum mean length of a word, in characters")
    max_symbols: float = Field(0.1, ge=0, description="maximum number of hash signs, or of ellipses, per word")
    max_bullets: float = Field(0.9, ge=0, le=1, description="maximum fraction of lines that start with a bullet")
    max_ellipsis_lines: float = Field(0.3, ge=0, le=1, description="maximum fraction of lines that end in an ellipsis")
    min_with_letter: float = Field(0.8, ge=0, le=1, description="minimum fraction of words that contain a letter")
    min_stop_words: int = Field(
        2,
        ge=0,
        le=8,
        description="minimum number of distinct words among the, be, to, of, and, that, have, with; 0 for other "
        "languages",
    )

    def rules(self) -> list[Rule]:
        """Return the rules in the order in which they are applied."""
        return [
            at_least("gopher.few_words", "words", self.min_words),
            at_most("gopher.many_words", "words", self.max_words),
            at_least("gopher.short_words", "mean word length", self.min_word_length),
            at_most("gopher.long_words", "mean word length", self.max_word_length),
            at_most("gopher.hashes", "hashes per word", self.max_symbols),
            at_most("gopher.ellipses", "ellipses per word", self.max_symbols),
            at_most("gopher.bullets", "share of lines with a bullet", self.max_bullets),
            at_most("gopher.ellipsis_lines", "share of lines with an ellipsis", self.max_ellipsis_lines),
            at_least("gopher.letters", "share of words with a letter", self.min_with_letter),
            at_least("gopher.stop_words", "stop words", self.min_stop_words),
        ]

    @staticmethod
    def measures(counts: Values) -> Values:
        """Compute the measures that the rules compare with their thresholds."""
        return {
            "words": counts["words"],
            "mean word length": ratio(counts["characters"] - counts["blanks"], counts["words"]),
            "hashes per word": ratio(counts["hashes"], counts["words"]),
            "ellipses per word": ratio(counts["ellipses"], counts["words"]),
            "share of lines with a bullet": ratio(counts["lines with a bullet"], counts["lines"]),
            "share of lines with an ellipsis": ratio(counts["lines with an ellipsis"], counts["lines"]),
            "share of words with a letter": ratio(counts["words with a letter"], counts["words"]),
            "stop words": counts["stop words"],
        }
