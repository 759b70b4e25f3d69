"""Rows of equal length out of token shards, without padding.

The stream is all documents joined by one [SEP] (or by nothing); row i holds [CLS], the i-th stretch of it, [SEP],
as the objective's shape has it. Neither the stream nor the rows are stored: the separators are worked out from the
documents' offsets when a row is asked for, so any shape reads the same shards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headstart.core.contracts import RowSource
from headstart.core.data import Bools, Ints, Rows, RowShape, Sample, Vocabulary
from headstart.core.errors import ArtifactError, DataError
from headstart.tokens.segments import SegmentRows
from headstart.tokens.shards import Shards


def cut(shards: Shards, vocabulary: Vocabulary, shape: RowShape) -> RowSource:
    """Lay rows of a shape over shards."""
    return SegmentRows(shards, vocabulary, shape) if shape.segments else PackedRows(shards, vocabulary, shape)


class PackedRows:
    """All full rows of one shape over token shards; a row's index is its identity."""

    def __init__(self, shards: Shards, vocabulary: Vocabulary, shape: RowShape) -> None:
        """Lay rows over shards; raises if they do not fill a single one."""
        self.shards, self.vocabulary, self.shape = shards, vocabulary, shape
        self._width = shape.length - shape.opens - shape.closes
        if (shape.opens and vocabulary.cls < 0) or ((shape.closes or shape.separates) and vocabulary.sep < 0):
            raise ArtifactError(
                "the tokenizer has no [CLS] or no [SEP]",
                allowed="Rows of this objective need them, or tokens that begin and end a text",
                do="Train one, or set tokenizer.path to another",
            )
        if self._width < 1:
            raise DataError(
                f"seq_length is {shape.length}",
                allowed=f"It must be at least {1 + shape.opens + shape.closes}, special tokens included",
            )
        self.stream_length = shards.tokens + shape.separates * (len(shards.documents) - 1)
        if not len(self):
            raise DataError(
                f"the corpus has {self.stream_length:,} tokens, too few for one row of {shape.length}",
                allowed=f"At least {self._width:,} are needed, in training and in validation",
                do="Add text, raise corpus.validation, or lower training.seq_length",
            )

    def __len__(self) -> int:
        """Return the number of full rows."""
        return self.stream_length // self._width

    def rows(self, samples: Sequence[Sample]) -> Rows:
        """Return the rows that the samples' indices name, whatever their epoch."""
        first = self._first([sample.index for sample in samples])
        is_separator, document = self._separators(first)
        positions = first[:, None] + np.arange(self._width)
        positions -= document[:, None] + np.cumsum(is_separator, axis=1)
        ids = np.empty((len(samples), self.shape.length), dtype=np.int64)
        inner = slice(int(self.shape.opens), int(self.shape.opens) + self._width)
        ids[:, inner] = np.where(is_separator, self.vocabulary.sep, self.shards.gather(positions))
        if self.shape.opens:
            ids[:, 0] = self.vocabulary.cls
        if self.shape.closes:
            ids[:, -1] = self.vocabulary.sep
        return Rows(ids, samples, self._sentences(positions, is_separator) if self.shape.sentences else ())

    def _sentences(self, positions: Ints, is_separator: Bools) -> list[Ints]:
        """Return the columns of each row at which a sentence starts."""
        starts = self.shards.sentences
        # A separator has the position of the token before it, which would count that token's sentence twice.
        found = np.searchsorted(starts, positions)
        opens = (starts[np.minimum(found, len(starts) - 1)] == positions) & ~is_separator
        return [np.flatnonzero(row) + int(self.shape.opens) for row in opens]

    def _first(self, indices: Sequence[int]) -> Ints:
        rows = np.asarray(indices, dtype=np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"rows run from 0 to {len(self) - 1}; got {rows.min()} to {rows.max()}")
        return rows * self._width

    def _separators(self, first: Ints) -> tuple[Bools, Ints]:
        """Return a mask of separators, shape (rows, width), and the document at each row's start.

        Document d starts at documents[d] + d in the stream, and its separator stands just before.
        """
        mask = np.zeros((len(first), self._width), dtype=bool)
        if not self.shape.separates:
            return mask, np.zeros(len(first), dtype=np.int64)
        document, last = self._document_at(np.stack([first, first + self._width]))
        counts = last - document
        row = np.repeat(np.arange(len(first)), counts)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts) + 1
        number = document[row] + nth
        mask[row, self.shards.documents[number] + number - 1 - first[row]] = True
        return mask, document

    def _document_at(self, positions: Ints) -> Ints:
        """Return the last document that starts at or before each position of the stream, by bisection.

        By hand, because np.searchsorted would need documents[d] + d as an array in memory.
        """
        low = np.zeros(positions.shape, dtype=np.int64)
        high = np.full(positions.shape, len(self.shards.documents), dtype=np.int64)
        for _ in range(len(self.shards.documents).bit_length()):
            middle = (low + high) >> 1
            below = self.shards.documents[np.minimum(middle, len(self.shards.documents) - 1)] + middle <= positions
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return low
