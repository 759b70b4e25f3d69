"""Rows of equal length out of token shards, without padding.

The stream is all documents joined by one [SEP]; row i holds [CLS], the i-th stretch of it, [SEP]. Neither the
stream nor the rows are stored: the separators are worked out from the documents' offsets when a row is asked
for, so any row length reads the same shards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headstart.core.contracts import Ints, Rows, Sample, Vocabulary
from headstart.core.errors import ArtifactError, DataError
from headstart.tokens.shards import Shards


class PackedRows:
    """All full rows of one length over token shards; a row's index is its identity."""

    def __init__(self, shards: Shards, vocabulary: Vocabulary, row_length: int) -> None:
        """Lay rows over shards; raises if they do not fill a single one."""
        if vocabulary.cls < 0 or vocabulary.sep < 0:
            raise ArtifactError(
                "the tokenizer has no [CLS] or no [SEP]",
                allowed="Packed rows need both",
                do="Train one, or set tokenizer.path to another",
            )
        if row_length < 3:
            raise DataError(f"row_length is {row_length}", allowed="It must be at least 3: [CLS], a token, [SEP]")
        self.shards, self.vocabulary, self.row_length = shards, vocabulary, row_length
        self._width = row_length - 2
        self.stream_length = shards.tokens + len(shards.documents) - 1
        if not len(self):
            raise DataError(
                f"the corpus has {self.stream_length:,} tokens, too few for one row of {row_length}",
                allowed=f"At least {self._width:,} are needed, in training and in validation",
                do="Add text, raise corpus.validation, or lower training.row_length",
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
        ids = np.empty((len(samples), self.row_length), dtype=np.int64)
        ids[:, 0], ids[:, -1] = self.vocabulary.cls, self.vocabulary.sep
        ids[:, 1:-1] = np.where(is_separator, self.vocabulary.sep, self.shards.gather(positions))
        return Rows(ids, samples)

    def document_starts(self, index: int) -> Ints:
        """Return the columns of a row at which a document starts; column 0 is [CLS]."""
        first = self._first([index])
        is_separator, document = self._separators(first)
        starts = np.flatnonzero(is_separator[0]) + 2
        opens = int(self.shards.documents[document[0]] + document[0]) == int(first[0])
        starts = np.concatenate([[1] if opens else [], starts]).astype(np.int64)
        return starts[starts <= self._width]

    def _first(self, indices: Sequence[int]) -> Ints:
        rows = np.asarray(indices, dtype=np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"rows run from 0 to {len(self) - 1}; got {rows.min()} to {rows.max()}")
        return rows * self._width

    def _separators(self, first: Ints) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.bool_]], Ints]:
        """Return a mask of separators, shape (rows, width), and the document at each row's start.

        Document d starts at documents[d] + d in the stream, and its separator stands just before.
        """
        document = self._document_at(first)
        last = self._document_at(first + self._width)
        mask = np.zeros((len(first), self._width), dtype=bool)
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
