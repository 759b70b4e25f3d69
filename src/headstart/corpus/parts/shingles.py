"""Words and n-grams of a batch of texts as 64-bit hashes, computed by Arrow's kernels without a loop over words."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headstart.core.data import Bools, Ints
from headstart.core.randomness import mix_bits
from headstart.corpus.parts.engine import evaluate
from headstart.corpus.parts.steps import as_array

Hashes = npt.NDArray[np.uint64]
_BASE = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Words:
    """The words of several texts, one text after the other."""

    hashes: Hashes
    lengths: Ints
    """The characters of each word."""
    starts: Ints
    """The index of each text's first word, followed by the number of all words."""

    @property
    def owners(self) -> Ints:
        """Return the index of the text that each word belongs to."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))


def words_of(texts: pa.Array | pa.ChunkedArray) -> Words:
    """Split texts at whitespace; each distinct word is hashed once."""
    from daft import col
    from daft.functions import hash as hashed

    lists = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(as_array(texts).cast(pa.large_string())))
    encoded = lists.flatten().dictionary_encode()
    known = evaluate(pa.table({"word": encoded.dictionary}), {"hash": hashed(col("word"), hash_function="xxhash3_64")})[
        "hash"
    ].to_numpy()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    lengths = pc.utf8_length(encoded.dictionary).to_numpy(zero_copy_only=False)
    # An empty text has one empty word.
    starts = lists.offsets.to_numpy().astype(np.int64)
    if not len(codes):
        return Words(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(len(texts) + 1, np.int64))
    return Words(known[codes], lengths[codes].astype(np.int64), starts - starts[0])


def ngrams(words: Words, n: int) -> tuple[Hashes, Ints]:
    """Return a hash for each n consecutive words of one text, and the index of the first of them."""
    count = len(words.hashes) - n + 1
    if count <= 0:
        return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)
    hashes = np.zeros(count, dtype=np.uint64)
    for step in range(n):
        hashes *= _BASE
        hashes += words.hashes[step : step + count]
    starts = np.flatnonzero(_in_one_text(words, n, count))
    return mix_bits(hashes[starts]), starts


def ngrams_at(words: Words, n: int, starts: Ints) -> Hashes:
    """Return the hashes of the n-grams that start at the given words; each must be within one text."""
    hashes = np.zeros(len(starts), dtype=np.uint64)
    for step in range(n):
        hashes = hashes * _BASE + words.hashes[starts + step]
    return mix_bits(hashes)


def shingle_sets(words: Words, n: int) -> list[Hashes]:
    """Return the sorted set of each text's n-grams; a text of fewer than n words counts as one n-gram."""
    hashes, starts = ngrams(words, n)
    cuts = np.searchsorted(starts, words.starts)
    sets = [_sorted_set(hashes[start:stop]) for start, stop in pairwise(cuts)]
    for text in np.flatnonzero(np.diff(cuts) == 0):
        sets[text] = _hash_sequence(words.hashes[words.starts[text] : words.starts[text + 1]])
    return sets


def _sorted_set(hashes: Hashes) -> Hashes:
    """Return the distinct hashes, sorted; ten times as fast as NumPy's `unique`, which hashes them first."""
    ordered = np.sort(hashes)
    first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def _hash_sequence(hashes: Hashes) -> Hashes:
    total = np.zeros(1, dtype=np.uint64)
    for value in hashes:
        total = total * _BASE + value
    return mix_bits(total)


def _in_one_text(words: Words, n: int, count: int) -> Bools:
    """Return for each word whether the n words from it on belong to one text."""
    inside = np.ones(count, dtype=bool)
    for start in words.starts[1:-1]:
        inside[max(0, start - n + 1) : start] = False
    return inside
