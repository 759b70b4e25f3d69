"""The rows of several corpora in one index space."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headstart.core.contracts import RowSource
from headstart.core.data import Ints, Rows, Sample


class MixedRows:
    """The rows of several corpora; the indices of each corpus follow those of the corpora before it."""

    def __init__(self, parts: Sequence[RowSource]) -> None:
        """Compute the index range of each part."""
        self.parts = list(parts)
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        """Return the total number of rows."""
        return int(self._ends[-1])

    def rows(self, samples: Sequence[Sample]) -> Rows:
        """Return the rows at the samples' indices, each from its part, in the order of the samples."""
        part_indices = np.searchsorted(self._ends, [sample.index for sample in samples], side="right")
        pieces: list[tuple[list[int], Rows]] = []
        for i in np.unique(part_indices):
            part, first = self.parts[i], int(self._ends[i]) - len(self.parts[i])
            members: list[int] = np.flatnonzero(part_indices == i).tolist()
            pieces.append((members, part.rows([Sample(samples[m].epoch, samples[m].index - first) for m in members])))
        return gathered(pieces, samples)

    def prefetch(self, first: int, last: int) -> None:
        """Start to fetch the tokens of the rows [first, last), which are all of one part, if they are in a store."""
        index = int(np.searchsorted(self._ends, first, side="right"))
        offset = int(self._ends[index]) - len(self.parts[index])
        self.parts[index].prefetch(first - offset, last - offset)


def gathered(pieces: Sequence[tuple[list[int], Rows]], samples: Sequence[Sample]) -> Rows:
    """Return rows that were read in several pieces, each with the indices of its samples, in the order of `samples`."""
    inverse = np.argsort([index for indices, _ in pieces for index in indices])
    parts = [rows for _, rows in pieces]
    sentences = [starts for rows in parts for starts in rows.sentence_starts]
    return Rows(
        np.concatenate([rows.ids for rows in parts])[inverse],
        samples,
        [sentences[i] for i in inverse] if sentences else (),
        _joined([rows.second_start for rows in parts], inverse),
        _joined([rows.negative_ids for rows in parts], inverse),
    )


def _joined(columns: Sequence[Ints | None], order: Ints) -> Ints | None:
    present = [column for column in columns if column is not None]
    return np.concatenate(present)[order] if present else None
