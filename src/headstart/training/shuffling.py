"""The order of rows: a permutation of all of them, or of blocks and then of the rows in a buffer of a few blocks.

A permutation of all rows makes each row a random read. With blocks, the rows that are read in the same stretch of
training lie in a few contiguous pieces of the corpus, which a disk or a store reads in sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headstart.core.data import Ints
from headstart.core.randomness import integer, permute


@dataclass(frozen=True)
class BlockShuffle:
    """Shuffles blocks of consecutive rows, and then the rows in buffers of a few blocks.

    Algorithm:
        The rows are rotated by a number that is drawn for each epoch, so that blocks begin elsewhere in each, and cut
        into blocks. The blocks are permuted and divided evenly into buffers, and the rows of a buffer are permuted. The
        rows of the last, short block belong to the last buffer.

    Properties:
        A pure function of (seed, epoch, position), computed for each position by itself: a resumed run and any number
        of processes read the same rows. Every row is read once per epoch.
    """

    block_rows: int
    buffer_blocks: int

    @property
    def buffer_rows(self) -> int:
        """Return the number of rows in a full buffer."""
        return self.block_rows * self.buffer_blocks

    def rows(self, positions: Ints, length: int, seed: int, epoch: int) -> Ints:
        """Return the rows at some positions of an epoch over `length` rows."""
        blocks, buffers = self._counts(length)
        slot = np.minimum(positions // self.block_rows, max(blocks - 1, 0))
        buffer = ((slot + 1) * buffers - 1) // max(blocks, 1)
        linear = np.empty_like(positions)
        for number in np.unique(buffer).tolist():
            members = buffer == number
            start, stop = self._extent(number, length)
            inside = permute(positions[members] - start, stop - start, seed, epoch, f"rows of buffer {number}")
            linear[members] = start + inside
        return self._unpermuted(linear, length, seed, epoch)

    def ahead(self, start: int, stop: int, length: int, seed: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of rows, [first, last), to fetch while the positions [start, stop) are read.

        These are the blocks that are needed one buffer later; at the start of training also those of the first buffer.
        Positions are counted over all epochs.
        """
        first = start + self.buffer_rows if start else 0
        for epoch in range(first // length, (stop + self.buffer_rows - 1) // length + 1):
            low = max(first - epoch * length, 0)
            high = min(stop + self.buffer_rows - epoch * length, length)
            for opening in range(-(-low // self.block_rows) * self.block_rows, high, self.block_rows):
                size = min(self.block_rows, length - opening)
                row = int(self._unpermuted(np.asarray([opening]), length, seed, epoch)[0])
                yield row, min(row + size, length)
                if row + size > length:
                    yield 0, row + size - length

    def _counts(self, length: int) -> tuple[int, int]:
        """Return the number of full blocks, and that of buffers."""
        blocks = length // self.block_rows
        return blocks, max(1, -(-blocks // self.buffer_blocks))

    def _extent(self, buffer: int, length: int) -> tuple[int, int]:
        """Return the positions at which a buffer starts and ends."""
        blocks, buffers = self._counts(length)
        start = buffer * blocks // buffers * self.block_rows
        return start, length if buffer == buffers - 1 else (buffer + 1) * blocks // buffers * self.block_rows

    def _unpermuted(self, linear: Ints, length: int, seed: int, epoch: int) -> Ints:
        """Return the rows at indices of the sequence of permuted blocks."""
        blocks, _ = self._counts(length)
        slot = linear // self.block_rows
        full = slot < blocks
        rows = linear.copy()
        if full.any():
            block = permute(slot[full], blocks, seed, epoch, "blocks")
            rows[full] = block * self.block_rows + linear[full] % self.block_rows
        return (rows + integer(seed, epoch, 0, "first row") % length) % length
