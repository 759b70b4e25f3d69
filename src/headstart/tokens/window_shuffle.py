"""The order of rows that are grouped in blocks of which only some are at hand: shuffled by block, then in a window.

Algorithm: the blocks of an epoch are permuted. Every `width` of them in sequence are a window, and the rows of a window
are permuted together.

Properties: the order is a pure function of (seed, epoch, position) and of the number of rows in the blocks up to there.
Every row is read once per epoch, and only the blocks of one window are needed at a time. Rows of blocks that are in
different windows are never neighbors, unlike in a full shuffle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headstart.core.data import Ints
from headstart.core.randomness import permute


@dataclass(frozen=True)
class WindowShuffle:
    """The windows of all epochs, numbered in one sequence: window w of epoch e is `e * windows + w`."""

    blocks: int
    width: int
    """Blocks in a window; the last window of an epoch may have fewer."""
    seed: int

    @property
    def windows(self) -> int:
        """Return the number of windows in an epoch."""
        return -(-self.blocks // self.width)

    def blocks_of(self, window: int) -> list[int]:
        """Return the blocks of a window."""
        epoch, number = divmod(window, self.windows)
        first = number * self.width
        positions = np.arange(first, min(first + self.width, self.blocks))
        return [int(block) for block in permute(positions, self.blocks, self.seed, epoch, "blocks")]

    def rows_of(self, window: int, offsets: Ints, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """Return the rows at some offsets in a window as (index of the block in the window, row in that block).

        `sizes` are the numbers of rows of the window's blocks.
        """
        ends = np.cumsum(sizes)
        rows = permute(offsets, int(ends[-1]), self.seed, window, "rows of a window")
        indices = np.searchsorted(ends, rows, side="right")
        starts = ends - np.asarray(sizes)
        return [(int(index), int(row - starts[index])) for index, row in zip(indices, rows, strict=True)]
