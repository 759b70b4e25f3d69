"""BART's five noise functions, each a pure function of a row's columns and a random generator.

A row is represented by the columns of the original row, with MASKED in the place of a mask token, so the functions can
be composed in any order. None of them makes a row longer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from headstart.core.data import Bools, Ints, Vocabulary

MASKED = -1
"""Represents a mask token among columns."""


@dataclass(frozen=True)
class Layout:
    """Boolean properties of each column of a row; the extra last entry is that of MASKED (index -1)."""

    ordinary: Bools
    """The token may be masked or deleted: it is neither special nor a mask."""
    frame: Bools
    """[CLS], [SEP], a language or padding: it keeps its place, and nothing moves across it. Documents are between."""
    opens: Bools
    """A sentence starts here."""

    @classmethod
    def of(cls, ids: Ints, sentences: Ints, vocabulary: Vocabulary) -> Layout:
        """Return the layout of one row, given the columns at which its sentences start."""
        ordinary, frame, opens = (np.zeros(len(ids) + 1, dtype=bool) for _ in range(3))
        ordinary[:-1] = ~vocabulary.special[ids]
        frame[:-1] = np.isin(ids, (vocabulary.cls, vocabulary.sep, vocabulary.pad, *vocabulary.added.values()))
        opens[sentences] = True
        return cls(ordinary, frame, opens)

    def budget(self, columns: Ints, rate: float) -> int:
        """Return the number of ordinary tokens to corrupt at a rate: at least one, if there is one."""
        count = int(self.ordinary[columns].sum())
        return min(count, max(1, round(rate * count)))


def mask_tokens(columns: Ints, layout: Layout, rate: float, rng: np.random.Generator) -> Ints:
    """Replace a fraction of the tokens by masks."""
    masked = columns.copy()
    masked[_choose(columns, layout, rate, rng)] = MASKED
    return masked


def delete_tokens(columns: Ints, layout: Layout, rate: float, rng: np.random.Generator) -> Ints:
    """Delete a fraction of the tokens, so that the model must find out where tokens are missing."""
    return np.delete(columns, _choose(columns, layout, rate, rng))


def infill_spans(columns: Ints, layout: Layout, rate: float, mean: float, rng: np.random.Generator) -> Ints:
    """Replace each of several spans, which together contain a fraction of the tokens, by one mask.

    No span contains a special token. Spans may be adjacent, and their positions are uniform.
    """
    runs = _runs(layout.ordinary[columns])
    sizes = np.asarray([stop - start for start, stop in runs], dtype=np.int64)
    pieces, end = [], 0
    lengths = draw_lengths(sizes, layout.budget(columns, rate), mean, rng)
    for (start, stop), run_lengths in zip(runs, lengths, strict=True):
        pieces += [columns[end:start], _infill(columns[start:stop], rng.permutation(run_lengths).astype(np.int64), rng)]
        end = stop
    return np.concatenate([*pieces, columns[end:]])


def draw_lengths(sizes: Ints, budget: int, mean: float, rng: np.random.Generator) -> list[list[int]]:
    """Return the lengths of the spans in each of several runs of text, which together contain `budget` tokens.

    Lengths are drawn from a Poisson distribution with the given mean. The last one is cut to the remaining budget, and
    one that is longer than the remaining room of every run is cut to the largest room. A length of 0 inserts a mask
    between two tokens; such lengths are kept as often as they are drawn, unless there would be more masks than tokens
    that they replace.
    """
    lengths: list[list[int]] = [[] for _ in sizes]
    # Plain integers: a row has few runs, and numpy's calls would take most of the time.
    weights: list[int] = sizes.tolist()
    room, left, empty = list(weights), budget, 0
    while left:
        length = min(int(rng.poisson(mean)), left, max(room))
        if not length:
            empty += 1
            continue
        index = _weighted_choice([size if size >= length else 0 for size in room], rng)
        lengths[index].append(length)
        room[index] -= length
        left -= length
    for _ in range(min(empty, budget - sum(map(len, lengths)))):
        lengths[_weighted_choice(weights, rng)].append(0)
    return lengths


def shuffle_sentences(columns: Ints, layout: Layout, rng: np.random.Generator) -> Ints:
    """Shuffle the sentences of each document; a sentence that is cut off at the end of a row counts as one."""
    shuffled = columns.copy()
    for start, stop in _runs(~layout.frame[columns]):
        starts = np.flatnonzero(layout.opens[columns[start:stop]])
        sentences = np.split(columns[start:stop], starts[starts > 0])
        shuffled[start:stop] = np.concatenate([sentences[i] for i in rng.permutation(len(sentences))])
    return shuffled


def rotate_documents(columns: Ints, layout: Layout, rng: np.random.Generator) -> Ints:
    """Rotate each document so that it starts with a random one of its tokens."""
    rotated = columns.copy()
    for start, stop in _runs(~layout.frame[columns]):
        rotated[start:stop] = np.roll(columns[start:stop], -int(rng.integers(stop - start)))
    return rotated


def _choose(columns: Ints, layout: Layout, rate: float, rng: np.random.Generator) -> Ints:
    """Return the indices of random ordinary tokens, a fraction `rate` of them."""
    return rng.permutation(np.flatnonzero(layout.ordinary[columns]))[: layout.budget(columns, rate)]


def _runs(flags: Bools) -> list[tuple[int, int]]:
    """Return the start and stop of each run of True values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]])))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def _weighted_choice(weights: Sequence[int], rng: np.random.Generator) -> int:
    """Return a random index with probability proportional to its weight."""
    return bisect_right(list(accumulate(weights)), int(rng.integers(sum(weights))))


def _infill(columns: Ints, lengths: Ints, rng: np.random.Generator) -> Ints:
    """Replace spans of these lengths by one mask each; every arrangement of masks and kept tokens is equally likely."""
    total = int(lengths.sum())
    filled = np.zeros(len(columns) - total + len(lengths), dtype=np.int64)
    masks = np.sort(rng.permutation(len(filled))[: len(lengths)])
    offsets = np.cumsum(lengths) - lengths
    starts = masks - np.arange(len(lengths)) + offsets
    replaced = np.repeat(starts - offsets, lengths) + np.arange(total)
    filled[masks] = MASKED
    filled[np.delete(np.arange(len(filled)), masks)] = np.delete(columns, replaced)
    return filled
