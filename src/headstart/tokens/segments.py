"""Rows of two segments of one document, split at the start of a sentence: `[CLS] A [SEP] B [SEP]`.

A document gives one row per row length of its tokens, in stretches that are spread evenly over it. A document of one
sentence gives none. In each stretch a point is drawn; the nearest sentence start is where A ends and B starts. A is
cut at its front and B at its end, or both at a sentence boundary, so that they fill the row. A document shorter than a
row is used whole and padded. Everything is computed from the offsets of documents and sentences when a row is read;
memory holds one number per document.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headstart.core.data import Ints, Rows, RowShape, Sample, Vocabulary
from headstart.core.errors import DataError
from headstart.core.randomness import generator
from headstart.tokens.shards import Shards

_FRAME = 3
_TRIES = 4
_COUNTED_DOCUMENTS = 1 << 20


class _Pair(NamedTuple):
    """For each row its document, and the positions at which A starts, A ends and B starts, and B ends."""

    document: Ints  # (rows,)
    start: Ints
    boundary: Ints
    end: Ints


class SegmentRows:
    """All rows of two segments over token shards, addressed by index."""

    def __init__(self, shards: Shards, vocabulary: Vocabulary, shape: RowShape) -> None:
        """Count the rows of each document and check that there is at least one."""
        self.shards, self.vocabulary, self.shape = shards, vocabulary, shape
        self._room = shape.length - _FRAME
        vocabulary.require_frame()
        if self._room < 2:
            raise DataError(
                f"seq_length is {shape.length}",
                allowed=f"Two segments need at least {_FRAME + 2}, special tokens included",
            )
        self._rows_until = self._count()
        if not len(self):
            raise DataError(
                f"none of the {len(shards.documents):,} documents has two sentences",
                allowed="A row consists of two segments of one document, split at a sentence boundary",
                do="Use longer documents (corpus.documents), or choose another objective",
            )

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._rows_until[-1])

    def rows(self, samples: Sequence[Sample]) -> Rows:
        """Return the rows at the samples' indices; the epoch does not matter."""
        indices = np.asarray([sample.index for sample in samples], dtype=np.int64)
        if indices.size and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"row indices are 0 to {len(self) - 1}, got {indices.min()} to {indices.max()}")
        draws = np.stack([generator(0, 0, int(index), "segments").random(1 + 2 * _TRIES) for index in indices])
        pair = self._pairs(indices, draws[:, 0])
        first, size = pair.boundary - pair.start, pair.end - pair.start
        column = np.arange(self.shape.length)
        # [CLS] shifts A by one column, [CLS] and [SEP] shift B by two.
        positions = pair.start[:, None] + column - 1 - (column > first[:, None] + 1)
        ids = self._tokens(positions)
        ids[:, 0] = self.vocabulary.cls
        ids[(column == first[:, None] + 1) | (column == size[:, None] + 2)] = self.vocabulary.sep
        ids[column > size[:, None] + 2] = self.vocabulary.pad
        negative_ids = self._negatives(pair, draws[:, 1 : 1 + _TRIES], draws[:, 1 + _TRIES :])
        return Rows(ids, samples, second_start=first + 2, negative_ids=negative_ids)

    def prefetch(self, first: int, last: int) -> None:
        """Start to fetch the tokens of the rows [first, last), if they are in a store; negatives are read when needed.

        These are all tokens of the documents to which the rows belong.
        """
        documents = np.searchsorted(self._rows_until, [first, last - 1], side="right")
        begin, end = self._extent(documents)
        self.shards.prefetch(int(begin[0]), int(end[1]))

    def _count(self) -> Ints:
        """Return the cumulative number of rows up to and including each document (documents,)."""
        until = np.empty(len(self.shards.documents), dtype=np.int64)
        total = 0
        for start in range(0, len(until), _COUNTED_DOCUMENTS):
            indices = np.arange(start, min(start + _COUNTED_DOCUMENTS, len(until)))
            begin, end = self._extent(indices)
            sentences = np.searchsorted(self.shards.sentences, [begin, end])
            rows = np.where(sentences[1] - sentences[0] > 1, -(-(end - begin) // self._room), 0)
            until[indices] = total + np.cumsum(rows)
            total = int(until[indices[-1]])
        return until

    def _extent(self, document: Ints) -> tuple[Ints, Ints]:
        """Return the positions at which documents start and end."""
        starts, last = self.shards.documents, len(self.shards.documents) - 1
        return starts[document], np.where(document < last, starts[np.minimum(document + 1, last)], self.shards.tokens)

    def _pairs(self, indices: Ints, draws: npt.NDArray[np.float64]) -> _Pair:
        """Return the segments of the rows at some indices, given one uniform draw per row."""
        starts, room = self.shards.sentences, self._room
        document = np.searchsorted(self._rows_until, indices, side="right")
        begin, end = self._extent(document)
        of_document = -(-(end - begin) // room)
        nth = indices - (self._rows_until[document] - of_document)
        stretch = begin + nth * np.maximum(end - begin - room, 0) // np.maximum(of_document - 1, 1)
        # A segment of a few tokens would reveal little about what precedes or follows it.
        shortest = max(1, room // 4)
        target = shortest + (draws * (room - 2 * shortest + 1)).astype(np.int64)
        lowest, highest = self._inner(begin, end)
        after = np.clip(np.searchsorted(starts, stretch + target), lowest, highest)
        before = np.clip(after - 1, lowest, highest)
        nearer = stretch + target - starts[before] < starts[after] - (stretch + target)
        middle = np.where(nearer, before, after)
        boundary = starts[middle]
        second = np.minimum(room - np.minimum(target, boundary - begin), end - boundary)
        first = np.minimum(room - second, boundary - begin)
        if self.shape.whole_sentences:
            opens = np.searchsorted(starts, boundary - first)
            whole = boundary - starts[np.minimum(opens, middle - 1)]
            first = np.where(whole <= np.maximum(first, room - shortest), whole, first)
            second = np.minimum(room - first, end - boundary)
            closes = np.searchsorted(starts, boundary + second, side="right") - 1
            cut = (closes > middle) & (boundary + second < end)
            second = np.where(cut, starts[closes] - boundary, second)
        return _Pair(document, boundary - first, boundary, boundary + second)

    def _negatives(self, pair: _Pair, which: npt.NDArray[np.float64], where: npt.NDArray[np.float64]) -> Ints:
        """Return tokens of other documents (rows, seq_length), each from the start of a sentence.

        Of a few candidates the first with as many tokens as B is used. Like B, a negative starts inside its document
        if that has two sentences, so that the start of a document reveals nothing. Padding follows the end of the
        document; without another document the row is padding only.
        """
        others = len(self.shards.documents) - 1
        if not others:
            return np.full((len(which), self.shape.length), self.vocabulary.pad)
        document = (pair.document[:, None] + 1 + (which * others).astype(np.int64)) % (others + 1)
        begin, end = self._extent(document)
        needed = (pair.end - pair.boundary)[:, None]
        point = begin + (where * np.maximum(end - begin - needed + 1, 1)).astype(np.int64)
        sentence = np.searchsorted(self.shards.sentences, point, side="right") - 1
        start = self.shards.sentences[np.clip(sentence, *self._inner(begin, end))]
        enough = end - start >= needed
        best = np.where(enough, self.shards.tokens + np.arange(_TRIES)[::-1], end - start).argmax(1)[:, None]
        start, end = (np.take_along_axis(array, best, axis=1) for array in (start, end))
        positions = start + np.arange(self.shape.length)
        return np.where(positions < end, self._tokens(positions), self.vocabulary.pad)

    def _inner(self, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Return the indices of the second and the last sentence of documents; both the only one of one."""
        first, after = np.searchsorted(self.shards.sentences, [begin, end])
        return np.minimum(first + 1, after - 1), after - 1

    def _tokens(self, positions: Ints) -> Ints:
        return self.shards.gather(np.clip(positions, 0, self.shards.tokens - 1))
