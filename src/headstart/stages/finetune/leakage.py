"""Rows that the splits of a fine-tuning run share: equal, equal after normalization, or near-duplicates.

    held-out rows ─ fingerprints ─┐
    rows before them, in batches ─┴─ equal hashes; equal bands of MinHash ─ exact Jaccard similarity ─ counts

Only the fingerprints of the held-out splits are kept, less than 200 bytes a row. The rows that they are compared with
pass in batches, so that memory does not grow with their number.
"""

from __future__ import annotations

import filecmp
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headstart.core.data import Bools, Examples, Ints
from headstart.core.errors import DataError
from headstart.core.log import logger
from headstart.core.randomness import mix_bits
from headstart.corpus.parts.shingles import Hashes, Words, ngrams
from headstart.stages.runs.manifest import SplitOverlap

_WORDS = 3
"""Words in a shingle."""
_JACCARD = 0.6
"""Minimum Jaccard similarity of near-duplicates. In a text of 15 words, one word may differ."""
_SHORTEST = 8
"""Words of the shortest text that is compared for near-duplicates: one word is much of a shorter one."""
_BANDS, _ROWS = 20, 3
"""Bands of a MinHash signature and hashes in a band: 99 % of the pairs at the threshold share a band."""
_BATCH_ROWS = 50_000
_BATCH_CHARACTERS = 16_000_000
_PAIRS = 20_000
"""Pairs of rows that are compared at once."""
_FACTORS = mix_bits(np.arange(1, _BANDS * _ROWS + 1, dtype=np.uint64)) | np.uint64(1)
_BASE = np.uint64(0xC2B2AE3D27D4EB4F)
_SEPARATOR = "\x1f"
"""Between the columns of a row; normalization makes a space of it."""
_UNSPACED = r"([\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}])"


def find_overlaps(train: Examples, validation: Examples, test: Examples) -> list[SplitOverlap]:
    """Count the validation rows that are also in train, and the test rows that are also in train or validation.

    The input columns are compared, without labels. A row counts once, under the first kind that applies. Pairs of
    splits without a shared row are left out.
    """
    held_out = {"validation": _Comparison(validation), "test": _Comparison(test)}
    overlaps = _compare("train", train, held_out)
    del held_out["validation"]
    held_out["test"].reset()
    return overlaps + _compare("validation", validation, held_out)


def warn_about_overlaps(overlaps: list[SplitOverlap]) -> None:
    """Log one warning for each pair of splits that share rows."""
    for overlap in overlaps:
        logger.warning("%s", overlap.sentence())


def require_other_rows(train: Examples, held_out: Examples, split: str) -> None:
    """Raise if a split is the training file, or has the same rows in any order and in any format."""
    # A source of several files is named by all of them, which no file name could be.
    paths = Path(train.source), Path(held_out.source)
    are_files = all(os.path.isfile(path) for path in paths)
    if train.source == held_out.source or (are_files and paths[0].samefile(paths[1])):
        found = "which is also data.train"
    elif (are_files and _has_same_bytes(*paths)) or _has_same_rows(train, held_out):
        found = f"which has the same rows as data.train ({train.source})"
    else:
        return
    raise DataError(
        f"data.{split} is {held_out.source}, {found}",
        allowed="Scores on rows that the model was trained on say nothing about other rows",
        do=f"Set data.{split} to other rows, or data.allow_overlap to true if this is intended",
    )


def _has_same_bytes(one: Path, other: Path) -> bool:
    return one.stat().st_size == other.stat().st_size and filecmp.cmp(one, other, shallow=False)


def _has_same_rows(one: Examples, other: Examples) -> bool:
    """Compare the texts, not the labels: texts with other labels have been seen in training too."""
    return len(one) == len(other) and np.array_equal(np.sort(_hash_rows(one)), np.sort(_hash_rows(other)))


@dataclass(frozen=True)
class _Fingerprints:
    """The hashes of some rows, and the shingles of those that are long enough for near-duplicates."""

    exact: Hashes  # (rows,)
    normal: Hashes  # (rows,)
    rows: Ints  # (long rows,)
    bands: Hashes  # (long rows, bands)
    shingles: Hashes
    owners: Ints
    """The index, among the long rows, that each shingle belongs to; ascending."""


class _Comparison:
    """The rows of a held-out split, and which of them have been found in the rows that were compared so far."""

    def __init__(self, rows: Examples) -> None:
        self.examples = rows
        prints = [(start, _fingerprints(batch)) for start, batch in _batches(rows)]
        self.exact = np.concatenate([batch.exact for _, batch in prints])
        self.normal = np.concatenate([batch.normal for _, batch in prints])
        self.long_rows = np.concatenate([start + batch.rows for start, batch in prints])
        self.bands = np.concatenate([batch.bands for _, batch in prints])
        self.reset()

    def reset(self) -> None:
        """Forget what was found."""
        self.is_exact, self.is_normal, self.is_near = (np.zeros(len(self.examples), dtype=bool) for _ in range(3))

    def add(self, batch: _Fingerprints) -> None:
        """Compare a batch of other rows with the rows of this split."""
        self.is_exact |= np.isin(self.exact, batch.exact)
        self.is_normal |= np.isin(self.normal, batch.normal)
        found: Bools = self.is_exact | self.is_normal | self.is_near
        left = np.flatnonzero(~found[self.long_rows])
        own, other = _candidates(self.bands[left], batch.bands)
        for start in range(0, len(own), _PAIRS):
            rows = self.long_rows[left[own[start : start + _PAIRS]]]
            self._verify(rows, other[start : start + _PAIRS], batch)

    def _verify(self, rows: Ints, others: Ints, batch: _Fingerprints) -> None:
        """Mark the rows whose shingles are similar enough to those of the other row of their pair."""
        distinct, places = np.unique(rows, return_inverse=True)
        texts = [row_text(self.examples, int(row)) for row in distinct]
        shingles, owners = _shingles(_words(normalize(texts)))
        own_keys, own_pairs = _by_pair(shingles, owners, places)
        other_keys, other_pairs = _by_pair(batch.shingles, batch.owners, others)
        shared = np.bincount(own_pairs[np.isin(own_keys, other_keys)], minlength=len(rows))
        sizes = np.bincount(own_pairs, minlength=len(rows)) + np.bincount(other_pairs, minlength=len(rows))
        self.is_near[rows[shared >= _JACCARD * (sizes - shared)]] = True

    def overlap(self, split: str, other: str) -> SplitOverlap:
        """Return the counts; each row counts under the first kind that applies."""
        normal = self.is_normal & ~self.is_exact
        near = self.is_near & ~self.is_normal & ~self.is_exact
        counts = (int(kind.sum()) for kind in (self.is_exact, normal, near))
        exact, normalized, similar = counts
        return SplitOverlap(
            split=split, other=other, rows=len(self.examples), exact=exact, normalized=normalized, near=similar
        )


def _compare(name: str, rows: Examples, held_out: dict[str, _Comparison]) -> list[SplitOverlap]:
    for _, texts in _batches(rows):
        batch = _fingerprints(texts)
        for comparison in held_out.values():
            comparison.add(batch)
    overlaps = [comparison.overlap(split, name) for split, comparison in held_out.items()]
    return [overlap for overlap in overlaps if overlap.shared]


def hash_rows(examples: Examples) -> list[str]:
    """Return a hash of each row's texts, equal for rows that differ only in case, spaces and punctuation."""
    hashes = (_hashes(normalize(texts).to_pylist()).tolist() for _, texts in _batches(examples) if texts)
    return [f"{value:016x}" for batch in hashes for value in batch]


def row_text(examples: Examples, row: int) -> str:
    """Return the input columns of a row as one text; the texts of a list are joined."""
    return _SEPARATOR.join(_as_text(values[row]) for values in examples.columns.values())


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _batches(examples: Examples) -> Iterator[tuple[int, list[str]]]:
    """Yield the texts of the rows in batches of limited size, each with the number of its first row."""
    texts: list[str] = []
    start = size = 0
    for row in range(len(examples)):
        text = row_text(examples, row)
        texts.append(text)
        size += len(text)
        if len(texts) == _BATCH_ROWS or size >= _BATCH_CHARACTERS:
            yield start, texts
            start, size, texts = row + 1, 0, []
    if texts or not start:
        yield start, texts


def _hash_rows(examples: Examples) -> Hashes:
    return np.concatenate([_hashes(texts) for _, texts in _batches(examples)])


def _hashes(texts: list[str]) -> Hashes:
    """Return a 64-bit hash of each text."""
    digests = b"".join(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, dtype=np.uint64)


def _fingerprints(texts: list[str]) -> _Fingerprints:
    normal = normalize(texts)
    words = _words(normal)
    shingles, owners = _shingles(words)
    rows = np.unique(owners)
    owners = np.searchsorted(rows, owners)
    return _Fingerprints(_hashes(texts), _hashes(normal.to_pylist()), rows, _bands(shingles, owners), shingles, owners)


def normalize(texts: Sequence[str]) -> pa.Array:
    """Return letters and digits in lower case with one space between words, as in the deduplication of a corpus.

    In scripts without spaces, each character is a word. A text without letters and digits stays as it is.
    """
    encoded = [text.encode("utf-8", "replace") for text in texts]
    array = pc.utf8_normalize(pa.array(encoded, pa.large_binary()).cast(pa.large_string()), form="NFKC")
    plain = pc.replace_substring_regex(pc.utf8_lower(array), r"[^\p{L}\p{N}\p{M}]+", " ")
    plain = pc.replace_substring_regex(plain, _UNSPACED, r" \1 ")
    plain = pc.utf8_trim_whitespace(pc.replace_substring_regex(plain, " {2,}", " "))
    return pc.if_else(pc.equal(pc.utf8_length(plain), 0), pc.utf8_trim_whitespace(array), plain)


def _words(normal: pa.Array) -> Words:
    """Split normalized texts at spaces; each distinct word is hashed once."""
    lists = pc.split_pattern(normal, " ")
    encoded = lists.flatten().dictionary_encode()
    hashes = _hashes(encoded.dictionary.to_pylist())
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    starts = lists.offsets.to_numpy().astype(np.int64)
    return Words(hashes[codes], np.zeros(len(codes), dtype=np.int64), starts - starts[0])


def _shingles(words: Words) -> tuple[Hashes, Ints]:
    """Return the shingles of the texts that are long enough, and the index of the text that each belongs to."""
    hashes, starts = ngrams(words, _WORDS)
    owners = words.owners[starts]
    is_long = np.diff(words.starts)[owners] >= _SHORTEST
    return hashes[is_long], owners[is_long]


def _bands(shingles: Hashes, owners: Ints) -> Hashes:
    """Return the bands of each text's MinHash signature."""
    firsts = np.flatnonzero(np.diff(owners, prepend=-1))
    bands = np.empty((len(firsts), _BANDS), dtype=np.uint64)
    for band in range(_BANDS):
        combined = np.full(len(firsts), band + 1, dtype=np.uint64)
        for factor in _FACTORS[band * _ROWS : (band + 1) * _ROWS] if len(firsts) else ():
            combined = combined * _BASE + np.minimum.reduceat(shingles * factor, firsts)
        bands[:, band] = mix_bits(combined)
    return bands


def _candidates(own: Hashes, others: Hashes) -> tuple[Ints, Ints]:
    """Return pairs of rows that share a band: for each row and band, the first other row with that band.

    A row has at most `_BANDS` pairs, so that a band that all rows share does not make the work quadratic.
    """
    pairs = [np.zeros((0, 2), dtype=np.int64)]
    for band in range(_BANDS) if len(others) else ():
        order = np.argsort(others[:, band], kind="stable")
        values = others[order, band]
        positions = np.minimum(np.searchsorted(values, own[:, band]), len(values) - 1)
        hits = np.flatnonzero(values[positions] == own[:, band])
        pairs.append(np.stack([hits, order[positions[hits]]], axis=1))
    distinct = np.unique(np.concatenate(pairs), axis=0)
    return distinct[:, 0], distinct[:, 1]


def _by_pair(shingles: Hashes, owners: Ints, members: Ints) -> tuple[Hashes, Ints]:
    """Return the distinct shingles of one member of each pair, as keys that differ between pairs, and their pairs."""
    firsts, ends = np.searchsorted(owners, members), np.searchsorted(owners, members, side="right")
    counts = ends - firsts
    pairs = np.repeat(np.arange(len(members)), counts)
    offsets = np.arange(len(pairs)) - np.repeat(np.cumsum(counts) - counts, counts)
    keys = mix_bits(shingles[np.repeat(firsts, counts) + offsets] ^ mix_bits(pairs.astype(np.uint64) + np.uint64(1)))
    distinct, index = np.unique(keys, return_index=True)
    return distinct, pairs[index]
