"""Gopher's repetition rules: lines, paragraphs and n-grams that occur in one text again and again."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from headstart.core.config import Section
from headstart.core.data import Bools, Ints
from headstart.corpus.clean.rules import Rule, Values, at_most, ratio
from headstart.corpus.parts.shingles import Hashes, Words, ngrams, ngrams_at, words_of

_SIEVE_BITS = 22


Ngram = Annotated[int, Field(ge=2)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Repetition(Section):
    """Thresholds of Gopher's repetition rules, as published."""

    paper: ClassVar[str] = "Rae et al. 2021, Gopher, table A1"
    counts: ClassVar[tuple[str, ...]] = (
        "lines", "distinct lines", "characters in lines", "characters in distinct lines",
        "paragraphs", "distinct paragraphs", "characters in paragraphs", "characters in distinct paragraphs",
    )  # fmt: skip

    max_lines: float = Field(0.3, ge=0, le=1, description="maximum fraction of repeated lines")
    max_paragraphs: float = Field(0.3, ge=0, le=1, description="maximum fraction of repeated paragraphs")
    max_line_characters: float = Field(0.2, ge=0, le=1, description="maximum fraction of characters in repeated lines")
    max_paragraph_characters: float = Field(
        0.2, ge=0, le=1, description="maximum fraction of characters in repeated paragraphs"
    )
    max_top: dict[Ngram, Fraction] = Field(
        {2: 0.2, 3: 0.18, 4: 0.16}, description="maximum fraction of characters in the most common n-gram, by n"
    )
    max_repeated: dict[Ngram, Fraction] = Field(
        {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.1},
        description="maximum fraction of characters in n-grams that occur more than once, by n",
    )

    def rules(self) -> list[Rule]:
        """Return the rules in the order in which they are applied."""
        return [
            at_most("repetition.lines", "share of repeated lines", self.max_lines),
            at_most("repetition.paragraphs", "share of repeated paragraphs", self.max_paragraphs),
            at_most("repetition.line_characters", "share of characters in repeated lines", self.max_line_characters),
            at_most(
                "repetition.paragraph_characters",
                "share of characters in repeated paragraphs",
                self.max_paragraph_characters,
            ),
            *(at_most(f"repetition.top_{n}_gram", f"top {n}-gram", most) for n, most in sorted(self.max_top.items())),
            *(at_most(f"repetition.{n}_grams", f"{n}-grams", most) for n, most in sorted(self.max_repeated.items())),
        ]

    @staticmethod
    def measures(counts: Values) -> Values:
        """Compute the measures that the rules on lines and paragraphs compare with their thresholds."""
        values: Values = {}
        for piece in ("line", "paragraph"):
            total, inside = counts[f"{piece}s"], counts[f"characters in {piece}s"]
            values[f"share of repeated {piece}s"] = ratio(total - counts[f"distinct {piece}s"], total)
            distinct = counts[f"characters in distinct {piece}s"]
            values[f"share of characters in repeated {piece}s"] = ratio(inside - distinct, inside)
        return values

    def ngram_measures(self, texts: pa.ChunkedArray | pa.Array) -> Values:
        """Compute the measures of the n-gram rules: fractions of the characters in words, without whitespace."""
        return repeated_fractions(words_of(texts), sorted(self.max_top), sorted(self.max_repeated))


def repeated_fractions(words: Words, top: list[int], repeated: list[int]) -> Values:
    """Return, for each text, the fraction of its characters in the most common n-gram and in all repeated n-grams.

    A character that several repeated n-grams cover counts once. An n-gram that occurs once is not repetition.
    """
    owners, texts = words.owners, len(words.starts) - 1
    ends = np.concatenate([[0], np.cumsum(words.lengths)])
    total = (ends[words.starts[1:]] - ends[words.starts[:-1]]).astype(np.float64)
    values: Values = {}
    keys, starts = ngrams(words, 2)
    keys, starts = _repeated(keys ^ _salt(owners[starts]), starts)
    for n in range(2, max((*top, *repeated, 2)) + 1):
        if n > 2:
            starts = _followed(starts)
            keys, starts = _repeated(ngrams_at(words, n, starts) ^ _salt(owners[starts]), starts)
        if n in top:
            values[f"top {n}-gram"] = ratio(_top_characters(keys, starts, owners, ends, n, texts), total)
        if n in repeated:
            covered = np.zeros(len(words.lengths), dtype=bool)
            for step in range(n):
                covered[starts + step] = True
            values[f"{n}-grams"] = ratio(
                np.bincount(owners[covered], words.lengths[covered], minlength=texts).astype(np.float64), total
            )
    return values


def _followed(starts: Ints) -> Ints:
    """Return the starts whose next word is a start too: only there can an n-gram with one more word be repeated."""
    return starts[:-1][np.diff(starts) == 1]


def _repeated(keys: Hashes, starts: Ints) -> tuple[Hashes, Ints]:
    """Keep the keys that occur more than once, with their starts.

    A sieve of counters removes most keys that occur once before the others are compared.
    """
    bits = max(8, min(_SIEVE_BITS, len(keys).bit_length() + 1))
    slots = (keys >> np.uint64(64 - bits)).astype(np.int64)
    maybe = np.bincount(slots, minlength=1 << bits)[slots] > 1
    keys, starts = keys[maybe], starts[maybe]
    encoded = pa.array(keys).dictionary_encode().indices.to_numpy(zero_copy_only=False)
    twice: Bools = np.bincount(encoded)[encoded] > 1 if len(encoded) else np.zeros(0, dtype=bool)
    return keys[twice], starts[twice]


def _top_characters(
    keys: Hashes, starts: Ints, owners: Ints, ends: Ints, n: int, texts: int
) -> npt.NDArray[np.float64]:
    """Return the characters in all occurrences of each text's most common n-gram, or of the longest such n-gram."""
    best = np.zeros(texts, dtype=np.int64)
    if not len(keys):
        return best.astype(np.float64)
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    lengths = ends[starts[first] + n] - ends[starts[first]]
    base = int(lengths.max()) + 1
    # Count and length in one number, so that one maximum compares by count first and by length second.
    np.maximum.at(best, owners[starts[first]], counts * base + lengths)
    return ((best // base) * (best % base)).astype(np.float64)


def _salt(owners: Ints) -> Hashes:
    """Return a number for each text that separates its n-grams from those of other texts."""
    return (owners.astype(np.uint64) + np.uint64(1)) * np.uint64(0xD1B54A32D192ED03)
