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
        parts: list[Rows] = []
        order: list[int] = []
        for i in np.unique(part_indices):
            part, first = self.parts[i], int(self._ends[i]) - len(self.parts[i])
            members: list[int] = np.flatnonzero(part_indices == i).tolist()
            order.extend(members)
            parts.append(part.rows([Sample(samples[m].epoch, samples[m].index - first) for m in members]))
        inverse = np.argsort(order)
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
