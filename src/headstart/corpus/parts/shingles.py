"""Words and n-grams of a batch of texts as 64-bit numbers, by Arrow's kernels: no loop over words in Python."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headstart.core.data import Bools, Ints
from headstart.corpus.parts.engine import evaluate
from headstart.corpus.parts.steps import flat

Hashes = npt.NDArray[np.uint64]
_BASE = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Words:
    """The words of several texts, one text after the other."""

    hashes: Hashes
    lengths: Ints
    """Characters of each word."""
    starts: Ints
    """For each text the place of its first word, and the number of all words at the end."""

    @property
    def owners(self) -> Ints:
        """Return for each word the number of its text."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))


def words_of(texts: pa.Array | pa.ChunkedArray) -> Words:
    """Split texts at blanks; a word is hashed once however often it occurs."""
    from daft import col
    from daft.functions import hash as hashed

    lists = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(flat(texts).cast(pa.large_string())))
    encoded = lists.flatten().dictionary_encode()
    known = evaluate(pa.table({"word": encoded.dictionary}), {"hash": hashed(col("word"), hash_function="xxhash3_64")})[
        "hash"
    ].to_numpy()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    lengths = pc.utf8_length(encoded.dictionary).to_numpy(zero_copy_only=False)
    # A text of nothing has one empty word.
    starts = lists.offsets.to_numpy().astype(np.int64)
    if not len(codes):
        return Words(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(len(texts) + 1, np.int64))
    return Words(known[codes], lengths[codes].astype(np.int64), starts - starts[0])


def ngrams(words: Words, n: int) -> tuple[Hashes, Ints]:
    """Return a hash for each n words in a row within one text, and the place of the first of them."""
    count = len(words.hashes) - n + 1
    if count <= 0:
        return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)
    hashes = np.zeros(count, dtype=np.uint64)
    for step in range(n):
        hashes *= _BASE
        hashes += words.hashes[step : step + count]
    places = np.flatnonzero(_within(words, n, count))
    return mixed(hashes[places]), places


def ngrams_at(words: Words, n: int, places: Ints) -> Hashes:
    """Return the hashes of n words in a row from some places on, all of which lie within one text."""
    hashes = np.zeros(len(places), dtype=np.uint64)
    for step in range(n):
        hashes = hashes * _BASE + words.hashes[places + step]
    return mixed(hashes)


def shingle_sets(words: Words, n: int) -> list[Hashes]:
    """Return for each text the set of its n-grams, sorted; a text of fewer words is one n-gram."""
    hashes, places = ngrams(words, n)
    cuts = np.searchsorted(places, words.starts)
    sets = [_sorted_set(hashes[start:stop]) for start, stop in pairwise(cuts)]
    for text in np.flatnonzero(np.diff(cuts) == 0):
        sets[text] = _whole(words.hashes[words.starts[text] : words.starts[text + 1]])
    return sets


def _sorted_set(hashes: Hashes) -> Hashes:
    """Return the different numbers, sorted; ten times as fast as NumPy's `unique`, which hashes them first."""
    ordered = np.sort(hashes)
    first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def _whole(hashes: Hashes) -> Hashes:
    total = np.zeros(1, dtype=np.uint64)
    for value in hashes:
        total = total * _BASE + value
    return mixed(total)


def _within(words: Words, n: int, count: int) -> Bools:
    """Say of each place whether n words from there on belong to one text."""
    inside = np.ones(count, dtype=bool)
    for start in words.starts[1:-1]:
        inside[max(0, start - n + 1) : start] = False
    return inside


def mixed(hashes: Hashes) -> Hashes:
    """Spread a polynomial's bits over the whole word (the finaliser of splitmix64, Steele et al. 2014)."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))
