"""Rows with the language of their corpus: a special token at the start, after [CLS]."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headstart.core.contracts import RowSource
from headstart.core.data import Ints, Rows, Sample, Vocabulary


class TaggedRows:
    """The rows of another source, each with one more token at its start (Liu et al. 2020, mBART).

    The token is special, so that no objective corrupts or predicts it.
    """

    def __init__(self, source: RowSource, tag: int, vocabulary: Vocabulary) -> None:
        """Put the token `tag` into rows that are one token shorter than those to return."""
        self.source, self.tag, self.vocabulary = source, tag, vocabulary

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.source)

    def prefetch(self, first: int, last: int) -> None:
        """Start to fetch the tokens of the rows [first, last), if they are in a store."""
        self.source.prefetch(first, last)

    def rows(self, samples: Sequence[Sample]) -> Rows:
        """Return the rows at the samples' indices; the epoch does not matter."""
        plain = self.source.rows(samples)
        at = int(self.vocabulary.cls >= 0 and bool((plain.ids[:, 0] == self.vocabulary.cls).all()))
        return Rows(
            np.insert(plain.ids, at, self.tag, axis=1),
            samples,
            [_moved(starts, at) for starts in plain.sentence_starts],
            None if plain.second_start is None else plain.second_start + 1,
            None
            if plain.negative_ids is None
            else np.pad(plain.negative_ids, ((0, 0), (0, 1)), constant_values=self.vocabulary.pad),
        )


def _moved(columns: Ints, at: int) -> Ints:
    """Return the columns after a token was inserted at `at`."""
    return columns + (columns >= at)
