"""Gopher's rules of repetition: lines, paragraphs and n-grams that stand in one text again and again."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from headstart.core.config import Section
from headstart.core.data import Bools, Ints
from headstart.corpus.clean.rules import Rule, Values, at_most, share
from headstart.corpus.parts.shingles import Hashes, Words, ngrams, ngrams_at, words_of

_SIEVE_BITS = 22


Ngram = Annotated[int, Field(ge=2)]
Share = Annotated[float, Field(ge=0, le=1)]


class Repetition(Section):
    """Thresholds of Gopher's rules of repetition, as published."""

    paper: ClassVar[str] = "Rae et al. 2021, Gopher, table A1"
    counts: ClassVar[tuple[str, ...]] = (
        "lines", "distinct lines", "characters in lines", "characters in distinct lines",
        "paragraphs", "distinct paragraphs", "characters in paragraphs", "characters in distinct paragraphs",
    )  # fmt: skip

    max_lines: float = Field(0.3, ge=0, le=1, description="share of lines that repeat one")
    max_paragraphs: float = Field(0.3, ge=0, le=1, description="share of paragraphs that repeat one")
    max_line_characters: float = Field(0.2, ge=0, le=1, description="share of characters in lines that repeat one")
    max_paragraph_characters: float = Field(0.2, ge=0, le=1, description="the same of paragraphs")
    max_top: dict[Ngram, Share] = Field(
        {2: 0.2, 3: 0.18, 4: 0.16}, description="share of characters in the commonest n-gram, by n"
    )
    max_repeated: dict[Ngram, Share] = Field(
        {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.1},
        description="share of characters in n-grams that occur more than once, by n",
    )

    def rules(self) -> list[Rule]:
        """Return the rules in the order in which they are asked."""
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
        """Return what the rules on lines and paragraphs look at, from the counts."""
        found: Values = {}
        for one in ("line", "paragraph"):
            whole, inside = counts[f"{one}s"], counts[f"characters in {one}s"]
            found[f"share of repeated {one}s"] = share(whole - counts[f"distinct {one}s"], whole)
            once = counts[f"characters in distinct {one}s"]
            found[f"share of characters in repeated {one}s"] = share(inside - once, inside)
        return found

    def of_ngrams(self, texts: pa.ChunkedArray | pa.Array) -> Values:
        """Return what the rules on n-grams look at: shares of the characters of words, blanks left out."""
        words = words_of(texts)
        return repeated_shares(words, sorted(self.max_top), sorted(self.max_repeated))


def repeated_shares(words: Words, top: list[int], repeated: list[int]) -> Values:
    """Return the share of the commonest n-gram, and of all n-grams that occur more than once, for each text.

    A character that several repeated n-grams cover counts once. An n-gram that occurs once is not repetition.
    """
    owners, texts = words.owners, len(words.starts) - 1
    before = np.concatenate([[0], np.cumsum(words.lengths)])
    whole = (before[words.starts[1:]] - before[words.starts[:-1]]).astype(np.float64)
    found: Values = {}
    keys, places = ngrams(words, 2)
    keys, places = _again(keys ^ _salted(owners[places]), places)
    for n in range(2, max((*top, *repeated, 2)) + 1):
        if n > 2:
            places = _followed(places)
            keys, places = _again(ngrams_at(words, n, places) ^ _salted(owners[places]), places)
        if n in top:
            found[f"top {n}-gram"] = share(_top(keys, places, owners, before, n, texts), whole)
        if n in repeated:
            covered = np.zeros(len(words.lengths), dtype=bool)
            for step in range(n):
                covered[places + step] = True
            found[f"{n}-grams"] = share(
                np.bincount(owners[covered], words.lengths[covered], minlength=texts).astype(np.float64), whole
            )
    return found


def _followed(places: Ints) -> Ints:
    """Return the places after which another follows: only there can one word more be repeated as well."""
    return places[:-1][np.diff(places) == 1]


def _again(keys: Hashes, places: Ints) -> tuple[Hashes, Ints]:
    """Keep the keys that occur more than once, with their places.

    A sieve of counters drops most keys that occur once before they are compared.
    """
    bits = max(8, min(_SIEVE_BITS, len(keys).bit_length() + 1))
    slots = (keys >> np.uint64(64 - bits)).astype(np.int64)
    maybe = np.bincount(slots, minlength=1 << bits)[slots] > 1
    keys, places = keys[maybe], places[maybe]
    encoded = pa.array(keys).dictionary_encode().indices.to_numpy(zero_copy_only=False)
    twice: Bools = np.bincount(encoded)[encoded] > 1 if len(encoded) else np.zeros(0, dtype=bool)
    return keys[twice], places[twice]


def _top(keys: Hashes, places: Ints, owners: Ints, before: Ints, n: int, texts: int) -> npt.NDArray[np.float64]:
    """Return the characters in all occurrences of each text's commonest n-gram, the longest of equally common ones."""
    best = np.zeros(texts, dtype=np.int64)
    if not len(keys):
        return best.astype(np.float64)
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    lengths = before[places[first] + n] - before[places[first]]
    room = int(lengths.max()) + 1
    np.maximum.at(best, owners[places[first]], counts * room + lengths)
    return ((best // room) * (best % room)).astype(np.float64)


def _salted(owners: Ints) -> Hashes:
    """Return a number for each text that keeps its n-grams apart from those of others."""
    return (owners.astype(np.uint64) + np.uint64(1)) * np.uint64(0xD1B54A32D192ED03)
