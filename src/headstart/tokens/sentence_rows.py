"""Rows of one sentence each: `[CLS] … [SEP]`, padded to the row length.

A row is computed from the offsets of the sentences when it is read, so nothing is stored beside the shards. The tokens
of a sentence that do not fit into a row are not read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headstart.core.data import Rows, RowShape, Sample, Vocabulary
from headstart.core.errors import DataError
from headstart.tokens.shards import Shards

_FRAME = 2


class SentenceRows:
    """All sentences over token shards as rows, addressed by index."""

    def __init__(self, shards: Shards, vocabulary: Vocabulary, shape: RowShape) -> None:
        """Check that there is a sentence, and that the tokenizer can frame and pad it."""
        self.shards, self.vocabulary, self.shape = shards, vocabulary, shape
        vocabulary.require_frame()
        if shape.length <= _FRAME:
            raise DataError(
                f"seq_length is {shape.length}",
                allowed=f"It must be at least {_FRAME + 1}, special tokens included",
            )
        if not len(self):
            raise DataError(
                "the corpus has no sentence",
                allowed="Training and validation each need at least one",
                do="Add text, or raise corpus.validation",
            )

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self.shards.sentences)

    def rows(self, samples: Sequence[Sample]) -> Rows:
        """Return the rows at the samples' indices; the epoch does not matter."""
        indices = np.asarray([sample.index for sample in samples], dtype=np.int64)
        last = len(self) - 1
        if indices.size and (indices.min() < 0 or indices.max() > last):
            raise IndexError(f"row indices are 0 to {last}, got {indices.min()} to {indices.max()}")
        starts, tokens = self.shards.sentences, self.shards.tokens
        begin = starts[indices]
        end = np.where(indices < last, starts[np.minimum(indices + 1, last)], tokens)
        size = np.minimum(end - begin, self.shape.length - _FRAME)[:, None]  # (rows, 1)
        column = np.arange(self.shape.length)
        ids = self.shards.gather(np.clip(begin[:, None] + column - 1, 0, tokens - 1))
        ids[:, 0] = self.vocabulary.cls
        ids[column == size + 1] = self.vocabulary.sep
        ids[column > size + 1] = self.vocabulary.pad
        return Rows(ids, samples)

    def prefetch(self, first: int, last: int) -> None:
        """Start to fetch the tokens of the rows [first, last), if they are in a store."""
        starts = self.shards.sentences
        self.shards.prefetch(int(starts[first]), int(starts[last]) if last < len(self) else self.shards.tokens)
