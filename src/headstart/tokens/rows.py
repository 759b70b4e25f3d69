"""Packs token shards into rows of equal length, without padding.

The stream is all documents joined by one [SEP] (or by nothing). Row i consists of [CLS], the i-th stretch of the
stream and [SEP], depending on the objective's row shape. Neither stream nor rows are stored: separators are computed
from the document offsets when a row is read, so one folder of shards serves every shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headstart.core.contracts import RowSource
from headstart.core.data import Bools, Ints, Rows, RowShape, Sample, Vocabulary
from headstart.core.errors import ArtifactError, DataError
from headstart.core.vocabulary import language_token
from headstart.tokens.segments import SegmentRows
from headstart.tokens.sentence_rows import SentenceRows
from headstart.tokens.shards import Shards
from headstart.tokens.tagged_rows import TaggedRows


def cut(shards: Shards, vocabulary: Vocabulary, shape: RowShape, language: str | None = None) -> RowSource:
    """Return the rows of a shape over token shards; with a language, its token is at the start of each."""
    if language is not None:
        shorter = replace(shape, length=shape.length - 1)
        return TaggedRows(cut(shards, vocabulary, shorter), vocabulary.added[language_token(language)], vocabulary)
    if shape.one_sentence:
        return SentenceRows(shards, vocabulary, shape)
    return SegmentRows(shards, vocabulary, shape) if shape.segments else PackedRows(shards, vocabulary, shape)


class PackedRows:
    """All full rows of one shape over token shards, addressed by index."""

    def __init__(self, shards: Shards, vocabulary: Vocabulary, shape: RowShape) -> None:
        """Check that the tokens fill at least one row."""
        self.shards, self.vocabulary, self.shape = shards, vocabulary, shape
        self._width = shape.length - shape.add_cls - shape.add_sep
        needs_sep = shape.add_sep or shape.separate_documents
        if (shape.add_cls and vocabulary.cls < 0) or (needs_sep and vocabulary.sep < 0):
            raise ArtifactError(
                "the tokenizer has no [CLS] or no [SEP]",
                allowed="The rows of this objective need both, or tokens that begin and end a text",
                do="Train a tokenizer, or set tokenizer.path to another one",
            )
        if self._width < 1:
            raise DataError(
                f"seq_length is {shape.length}",
                allowed=f"It must be at least {1 + shape.add_cls + shape.add_sep}, special tokens included",
            )
        self.stream_length = shards.tokens + shape.separate_documents * (len(shards.documents) - 1)
        if not len(self):
            raise DataError(
                f"the corpus has {self.stream_length:,} tokens, too few for one row of {shape.length}",
                allowed=f"Training and validation each need at least {self._width:,}",
                do="Add text, raise corpus.validation, or lower training.seq_length",
            )

    def __len__(self) -> int:
        """Return the number of full rows."""
        return self.stream_length // self._width

    def rows(self, samples: Sequence[Sample]) -> Rows:
        """Return the rows at the samples' indices; the epoch does not matter."""
        first = self._first([sample.index for sample in samples])
        is_separator, document = self._separators(first)
        positions = first[:, None] + np.arange(self._width)
        positions -= document[:, None] + np.cumsum(is_separator, axis=1)
        ids = np.empty((len(samples), self.shape.length), dtype=np.int64)
        inner = slice(int(self.shape.add_cls), int(self.shape.add_cls) + self._width)
        ids[:, inner] = np.where(is_separator, self.vocabulary.sep, self.shards.gather(positions))
        if self.shape.add_cls:
            ids[:, 0] = self.vocabulary.cls
        if self.shape.add_sep:
            ids[:, -1] = self.vocabulary.sep
        return Rows(ids, samples, self._sentences(positions, is_separator) if self.shape.sentence_starts else ())

    def prefetch(self, first: int, last: int) -> None:
        """Start to fetch the tokens of the rows [first, last), if they are in a store."""
        ends = np.asarray([first, last], dtype=np.int64) * self._width
        separators = self._document_at(ends) if self.shape.separate_documents else np.zeros(2, dtype=np.int64)
        start, stop = (ends - separators).tolist()
        self.shards.prefetch(start, min(stop, self.shards.tokens))

    def _sentences(self, positions: Ints, is_separator: Bools) -> list[Ints]:
        """Return the columns of each row at which a sentence starts."""
        starts = self.shards.sentences
        # A separator has the position of the token before it, so that token's sentence would count twice.
        nearest = starts[np.minimum(np.searchsorted(starts, positions), len(starts) - 1)]
        is_start = (nearest == positions) & ~is_separator  # (rows, width)
        return [np.flatnonzero(row) + int(self.shape.add_cls) for row in is_start]

    def _first(self, indices: Sequence[int]) -> Ints:
        rows = np.asarray(indices, dtype=np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"row indices are 0 to {len(self) - 1}, got {rows.min()} to {rows.max()}")
        return rows * self._width

    def _separators(self, first: Ints) -> tuple[Bools, Ints]:
        """Return a mask of separators (rows, width), and the index of the document at each row's start (rows,).

        Document d starts at documents[d] + d in the stream; its separator is the position before.
        """
        mask = np.zeros((len(first), self._width), dtype=bool)
        if not self.shape.separate_documents:
            return mask, np.zeros(len(first), dtype=np.int64)
        document, last = self._document_at(np.stack([first, first + self._width]))
        counts = last - document
        row = np.repeat(np.arange(len(first)), counts)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts) + 1
        next_document = document[row] + nth
        mask[row, self.shards.documents[next_document] + next_document - 1 - first[row]] = True
        return mask, document

    def _document_at(self, positions: Ints) -> Ints:
        """Return the last document that starts at or before each position of the stream, by bisection.

        Not np.searchsorted, which would need documents[d] + d as an array in memory.
        """
        low = np.zeros(positions.shape, dtype=np.int64)
        high = np.full(positions.shape, len(self.shards.documents), dtype=np.int64)
        for _ in range(len(self.shards.documents).bit_length()):
            middle = (low + high) >> 1
            below = self.shards.documents[np.minimum(middle, len(self.shards.documents) - 1)] + middle <= positions
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return low
