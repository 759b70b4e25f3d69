"""A synthetic vocabulary and rows of random tokens, with which a step is timed before any text is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headstart.core.data import Rows, RowShape, Sample, Vocabulary
from headstart.tokens.tokenizer import TokenizerConfig, add_special
from headstart.tokens.tokenizer import load as load_tokenizer

_ROWS = 4096
"""Number of distinct rows."""


def vocabulary_of(settings: TokenizerConfig, extra: Sequence[str]) -> Vocabulary:
    """Return the vocabulary that the tokenizer will have: a ready one's plus its extension, or a synthetic one."""
    if settings.path is None:
        return _synthetic(settings.vocab_size, extra)
    known = add_special(load_tokenizer(settings.path), extra)
    more = settings.extend or 0
    return replace(
        known,
        size=known.size + more,
        special=np.pad(known.special, (0, more)),
        starts_word=np.pad(known.starts_word, (0, more), constant_values=True),
        ends_word=None if known.ends_word is None else np.pad(known.ends_word, (0, more)),
    )


class NoiseRows:
    """Rows of random tokens in an objective's shape, which cost as much as real ones."""

    def __init__(self, vocabulary: Vocabulary, shape: RowShape) -> None:
        """Take the vocabulary to draw from and the shape of a row."""
        self.vocabulary, self.shape = vocabulary, shape

    def __len__(self) -> int:
        return _ROWS

    def prefetch(self, first: int, last: int) -> None:
        """Do nothing: no tokens are fetched."""

    def rows(self, samples: Sequence[Sample]) -> Rows:
        """Return a row for each sample; the same index gives the same row."""
        shape, count = self.shape, len(samples)
        ids = np.stack([self._draw(sample.index) for sample in samples])
        if shape.add_cls:
            ids[:, 0] = self.vocabulary.cls
        if shape.add_sep:
            ids[:, -1] = self.vocabulary.sep
        middle = shape.length // 2
        if shape.segments:
            ids[:, middle - 1] = self.vocabulary.sep
        return Rows(
            ids,
            list(samples),
            [np.asarray([1, middle])] * count if shape.sentence_starts else (),
            np.full(count, middle) if shape.segments else None,
            np.roll(ids, 1, axis=0) if shape.segments else None,
        )

    def _draw(self, index: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        rng = np.random.Generator(np.random.Philox(index))
        ids: np.ndarray[tuple[int], np.dtype[np.int64]] = self.vocabulary.ordinary[
            rng.integers(0, len(self.vocabulary.ordinary), size=self.shape.length)
        ]
        return ids


def _synthetic(size: int, extra: Sequence[str]) -> Vocabulary:
    """Return a vocabulary of the right size, in place of a tokenizer that is not trained yet."""
    total = size + len(extra)
    special = np.zeros(total, dtype=bool)
    special[:5] = special[size:] = True
    return Vocabulary(
        total, pad=0, cls=2, sep=3, mask=4, special=special, starts_word=np.ones(total, dtype=bool),
        added={token: size + index for index, token in enumerate(extra)},
    )  # fmt: skip
