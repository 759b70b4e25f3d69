"""Rows of several corpora under one numbering."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headstart.core.contracts import RowSource
from headstart.core.data import Ints, Rows, Sample


class MixedRows:
    """The rows of several corpora, those of each numbered after all of the corpora before it."""

    def __init__(self, parts: Sequence[RowSource]) -> None:
        """Number the rows of all parts."""
        self.parts = list(parts)
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        """Return the number of rows in all."""
        return int(self._ends[-1])

    def rows(self, samples: Sequence[Sample]) -> Rows:
        """Return the rows that the samples' indices name, each from its own part, in the order asked for."""
        owners = np.searchsorted(self._ends, [sample.index for sample in samples], side="right")
        found: list[Rows] = []
        order: list[int] = []
        for owner in np.unique(owners):
            part, first = self.parts[owner], int(self._ends[owner]) - len(self.parts[owner])
            places: list[int] = np.flatnonzero(owners == owner).tolist()
            order.extend(places)
            found.append(part.rows([Sample(samples[p].epoch, samples[p].index - first) for p in places]))
        back = np.argsort(order)
        sentences = [starts for rows in found for starts in rows.sentences]
        return Rows(
            np.concatenate([rows.ids for rows in found])[back],
            samples,
            [sentences[place] for place in back] if sentences else (),
            _joined([rows.second for rows in found], back),
            _joined([rows.negative_ids for rows in found], back),
        )


def _joined(columns: Sequence[Ints | None], order: Ints) -> Ints | None:
    given = [column for column in columns if column is not None]
    return np.concatenate(given)[order] if given else None
