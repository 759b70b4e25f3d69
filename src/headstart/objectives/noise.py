"""BART's five ways to damage a text, each a pure function of a row's columns and of chance.

A row on its way through them is an array of the columns of the original row, with HIDDEN wherever a mask stands; so
any of them can follow any other. None makes a row longer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headstart.core.data import Bools, Ints, Vocabulary

HIDDEN = -1
"""Stands for a mask among columns."""


@dataclass(frozen=True)
class Layout:
    """What noise must know of each column of a row; the entry after the last column answers for HIDDEN."""

    ordinary: Bools
    """It may be hidden or dropped: no special token, no mask."""
    frame: Bools
    """[CLS], [SEP] or padding: it stays, and nothing moves past it. What lies between two of them is a document."""
    opens: Bools
    """A sentence starts here."""

    @classmethod
    def of(cls, ids: Ints, sentences: Ints, vocabulary: Vocabulary) -> Layout:
        """Describe one row, given the columns at which its sentences start."""
        ordinary, frame, opens = (np.zeros(len(ids) + 1, dtype=bool) for _ in range(3))
        ordinary[:-1] = ~vocabulary.special[ids]
        frame[:-1] = np.isin(ids, (vocabulary.cls, vocabulary.sep, vocabulary.pad))
        opens[sentences] = True
        return cls(ordinary, frame, opens)

    def budget(self, columns: Ints, rate: float) -> int:
        """Return how many of the ordinary tokens make up a share of them: at least one, if there is one."""
        count = int(self.ordinary[columns].sum())
        return min(count, max(1, round(rate * count)))


def hide_tokens(columns: Ints, layout: Layout, rate: float, chance: np.random.Generator) -> Ints:
    """Put a mask in the place of a share of the tokens."""
    return _put(columns, _choose(columns, layout, rate, chance), HIDDEN)


def delete_tokens(columns: Ints, layout: Layout, rate: float, chance: np.random.Generator) -> Ints:
    """Drop a share of the tokens, so that the model must find out where one is missing."""
    return np.delete(columns, _choose(columns, layout, rate, chance))


def fill_spans(columns: Ints, layout: Layout, rate: float, mean: float, chance: np.random.Generator) -> Ints:
    """Put one mask in the place of each of several spans that hold a share of the tokens together.

    No span holds a special token; spans may touch, and their places are uniform.
    """
    runs = _runs(layout.ordinary[columns])
    sizes = np.asarray([stop - start for start, stop in runs], dtype=np.int64)
    pieces, end = [], 0
    lengths = draw_lengths(sizes, layout.budget(columns, rate), mean, chance)
    for (start, stop), chosen in zip(runs, lengths, strict=True):
        pieces += [columns[end:start], _fill(columns[start:stop], chance.permutation(chosen).astype(np.int64), chance)]
        end = stop
    return np.concatenate([*pieces, columns[end:]])


def draw_lengths(sizes: Ints, budget: int, mean: float, chance: np.random.Generator) -> list[list[int]]:
    """Draw the lengths of the spans in each of several stretches of text, until they hold `budget` tokens together.

    Lengths are Poisson's with the given mean. The last is cut to fit, and one that is longer than what is left of any
    stretch is cut to that. A length of 0 is a mask put between two tokens, as often as it is drawn, unless masks would
    outnumber the tokens that they replace.
    """
    lengths: list[list[int]] = [[] for _ in sizes]
    room, left, empty = sizes.copy(), budget, 0
    while left:
        length = min(int(chance.poisson(mean)), left, int(room.max()))
        if not length:
            empty += 1
            continue
        place = _pick(np.where(room >= length, room, 0), chance)
        lengths[place].append(length)
        room[place] -= length
        left -= length
    for _ in range(min(empty, budget - sum(map(len, lengths)))):
        lengths[_pick(sizes, chance)].append(0)
    return lengths


def shuffle_sentences(columns: Ints, layout: Layout, chance: np.random.Generator) -> Ints:
    """Put the sentences of each document in a random order; what is cut off at a row's ends counts as one."""
    shuffled = columns.copy()
    for start, stop in _runs(~layout.frame[columns]):
        starts = np.flatnonzero(layout.opens[columns[start:stop]])
        sentences = np.split(columns[start:stop], starts[starts > 0])
        shuffled[start:stop] = np.concatenate([sentences[place] for place in chance.permutation(len(sentences))])
    return shuffled


def rotate_documents(columns: Ints, layout: Layout, chance: np.random.Generator) -> Ints:
    """Let each document begin with a token chosen at random, and put what stood before it at the end."""
    rotated = columns.copy()
    for start, stop in _runs(~layout.frame[columns]):
        rotated[start:stop] = np.roll(columns[start:stop], -int(chance.integers(stop - start)))
    return rotated


def _choose(columns: Ints, layout: Layout, rate: float, chance: np.random.Generator) -> Ints:
    return chance.permutation(np.flatnonzero(layout.ordinary[columns]))[: layout.budget(columns, rate)]


def _put(columns: Ints, places: Ints, value: int) -> Ints:
    changed = columns.copy()
    changed[places] = value
    return changed


def _runs(flags: Bools) -> list[tuple[int, int]]:
    """Return the start and stop of each stretch of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]])))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def _pick(weights: Ints, chance: np.random.Generator) -> int:
    return int(np.searchsorted(np.cumsum(weights), chance.integers(weights.sum()), side="right"))


def _fill(columns: Ints, lengths: Ints, chance: np.random.Generator) -> Ints:
    """Replace spans of these lengths by one mask each; every arrangement of them and what is kept is as likely."""
    total = int(lengths.sum())
    filled = np.zeros(len(columns) - total + len(lengths), dtype=np.int64)
    masks = np.sort(chance.permutation(len(filled))[: len(lengths)])
    before = np.cumsum(lengths) - lengths
    starts = masks - np.arange(len(lengths)) + before
    replaced = np.repeat(starts - before, lengths) + np.arange(total)
    filled[masks] = HIDDEN
    filled[np.delete(np.arange(len(filled)), masks)] = np.delete(columns, replaced)
    return filled
