"""Rows of two segments of one document that meet where a sentence starts: `[CLS] A [SEP] B [SEP]`.

A document gives a row for every row's worth of its tokens, the stretches spread evenly over it; one of a single
sentence gives none. In each stretch a point is drawn, and the sentence's start nearest to it is where A ends and B
starts; A is then cut at its front and B at its end, or both at the next sentence, so that they fill the row. A shorter
document is taken whole and padded. All of it is worked out from the offsets of documents and sentences when a row is
asked for; what is held in memory is one number per document.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headstart.core.data import Ints, Rows, RowShape, Sample, Vocabulary
from headstart.core.errors import ArtifactError, DataError
from headstart.core.randomness import generator
from headstart.tokens.shards import Shards

_FRAME = 3
_TRIES = 4
_AT_ONCE = 1 << 20


class _Pair(NamedTuple):
    """For each row its document, where A starts, where it meets B, and where B ends, as positions in the stream."""

    document: Ints
    start: Ints
    meeting: Ints
    end: Ints


class SegmentRows:
    """All rows of two segments over token shards; a row's index is its identity."""

    def __init__(self, shards: Shards, vocabulary: Vocabulary, shape: RowShape) -> None:
        """Count the rows of each document; raises if there is not one."""
        self.shards, self.vocabulary, self.shape = shards, vocabulary, shape
        self._room = shape.length - _FRAME
        if min(vocabulary.cls, vocabulary.sep, vocabulary.pad) < 0:
            raise ArtifactError(
                "the tokenizer has no [CLS], no [SEP] or no [PAD]",
                allowed="Rows of two segments need all three",
                do="Train one, or set tokenizer.path to another",
            )
        if self._room < 2:
            raise DataError(
                f"seq_length is {shape.length}",
                allowed=f"Two segments need at least {_FRAME + 2}, special tokens included",
            )
        self._rows_until = self._count()
        if not len(self):
            raise DataError(
                f"none of the {len(shards.documents):,} documents has two sentences",
                allowed="A row holds two segments of one document that meet at a sentence's end",
                do="Let a document be more than a line (corpus.documents), or choose another objective",
            )

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._rows_until[-1])

    def rows(self, samples: Sequence[Sample]) -> Rows:
        """Return the rows that the samples' indices name, whatever their epoch."""
        indices = np.asarray([sample.index for sample in samples], dtype=np.int64)
        if indices.size and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"rows run from 0 to {len(self) - 1}; got {indices.min()} to {indices.max()}")
        draws = np.stack([generator(0, 0, int(index), "segments").random(1 + 2 * _TRIES) for index in indices])
        pair = self._pairs(indices, draws[:, 0])
        first, size = pair.meeting - pair.start, pair.end - pair.start
        column = np.arange(self.shape.length)
        # Before A stands [CLS], between A and B a [SEP].
        positions = pair.start[:, None] + column - 1 - (column > first[:, None] + 1)
        ids = self._tokens(positions)
        ids[:, 0] = self.vocabulary.cls
        ids[(column == first[:, None] + 1) | (column == size[:, None] + 2)] = self.vocabulary.sep
        ids[column > size[:, None] + 2] = self.vocabulary.pad
        negative_ids = self._strangers(pair, draws[:, 1 : 1 + _TRIES], draws[:, 1 + _TRIES :])
        return Rows(ids, samples, second=first + 2, negative_ids=negative_ids)

    def _count(self) -> Ints:
        """Return the number of rows of all documents up to each, itself included."""
        until = np.empty(len(self.shards.documents), dtype=np.int64)
        total = 0
        for start in range(0, len(until), _AT_ONCE):
            number = np.arange(start, min(start + _AT_ONCE, len(until)))
            begin, end = self._extent(number)
            sentences = np.searchsorted(self.shards.sentences, [begin, end])
            rows = np.where(sentences[1] - sentences[0] > 1, -(-(end - begin) // self._room), 0)
            until[number] = total + np.cumsum(rows)
            total = int(until[number[-1]])
        return until

    def _extent(self, document: Ints) -> tuple[Ints, Ints]:
        """Return where documents start and end."""
        starts, last = self.shards.documents, len(self.shards.documents) - 1
        return starts[document], np.where(document < last, starts[np.minimum(document + 1, last)], self.shards.tokens)

    def _pairs(self, indices: Ints, draws: npt.NDArray[np.float64]) -> _Pair:
        starts, room = self.shards.sentences, self._room
        document = np.searchsorted(self._rows_until, indices, side="right")
        begin, end = self._extent(document)
        of_document = -(-(end - begin) // room)
        nth = indices - (self._rows_until[document] - of_document)
        stretch = begin + nth * np.maximum(end - begin - room, 0) // np.maximum(of_document - 1, 1)
        # A segment of a few tokens would say little of what comes before or after it.
        least = max(1, room // 4)
        wanted = least + (draws * (room - 2 * least + 1)).astype(np.int64)
        lowest, highest = self._inner(begin, end)
        after = np.clip(np.searchsorted(starts, stretch + wanted), lowest, highest)
        before = np.clip(after - 1, lowest, highest)
        nearer = stretch + wanted - starts[before] < starts[after] - (stretch + wanted)
        middle = np.where(nearer, before, after)
        meeting = starts[middle]
        second = np.minimum(room - np.minimum(wanted, meeting - begin), end - meeting)
        first = np.minimum(room - second, meeting - begin)
        if self.shape.whole_sentences:
            opens = np.searchsorted(starts, meeting - first)
            whole = meeting - starts[np.minimum(opens, middle - 1)]
            first = np.where(whole <= np.maximum(first, room - least), whole, first)
            second = np.minimum(room - first, end - meeting)
            closes = np.searchsorted(starts, meeting + second, side="right") - 1
            cut = (closes > middle) & (meeting + second < end)
            second = np.where(cut, starts[closes] - meeting, second)
        return _Pair(document, meeting - first, meeting, meeting + second)

    def _strangers(self, pair: _Pair, which: npt.NDArray[np.float64], where: npt.NDArray[np.float64]) -> Ints:
        """Return tokens of other documents from a sentence's start, as many as B has in the first of a few tries.

        Like B they start inside a document where it has two sentences, so that being an opening tells nothing. Padding
        follows a document's end, and stands alone where there is no other document.
        """
        others = len(self.shards.documents) - 1
        if not others:
            return np.full((len(which), self.shape.length), self.vocabulary.pad)
        document = (pair.document[:, None] + 1 + (which * others).astype(np.int64)) % (others + 1)
        begin, end = self._extent(document)
        wanted = (pair.end - pair.meeting)[:, None]
        point = begin + (where * np.maximum(end - begin - wanted + 1, 1)).astype(np.int64)
        found = np.searchsorted(self.shards.sentences, point, side="right") - 1
        start = self.shards.sentences[np.clip(found, *self._inner(begin, end))]
        enough = end - start >= wanted
        best = np.where(enough, self.shards.tokens + np.arange(_TRIES)[::-1], end - start).argmax(1)[:, None]
        start, end = (np.take_along_axis(array, best, axis=1) for array in (start, end))
        positions = start + np.arange(self.shape.length)
        return np.where(positions < end, self._tokens(positions), self.vocabulary.pad)

    def _inner(self, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Return the first and last sentence of documents but their opening one, which alone is both if it is all."""
        first, after = np.searchsorted(self.shards.sentences, [begin, end])
        return np.minimum(first + 1, after - 1), after - 1

    def _tokens(self, positions: Ints) -> Ints:
        return self.shards.gather(np.clip(positions, 0, self.shards.tokens - 1))
