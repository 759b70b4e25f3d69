"""The order of rows in blocks: every row once per epoch, from the blocks of one window at a time."""

from __future__ import annotations

import numpy as np

from headstart.tokens.window_shuffle import WindowShuffle

SIZES = [5, 0, 7, 3, 11, 4, 6]


def epoch_of(shuffle: WindowShuffle, epoch: int) -> list[tuple[int, int]]:
    rows: list[tuple[int, int]] = []
    for window in range(epoch * shuffle.windows, (epoch + 1) * shuffle.windows):
        blocks = shuffle.blocks_of(window)
        sizes = [SIZES[block] for block in blocks]
        found = shuffle.rows_of(window, np.arange(sum(sizes)), sizes)
        rows += [(blocks[index], row) for index, row in found]
    return rows


def test_an_epoch_reads_every_row_once_in_an_order_of_its_own() -> None:
    shuffle = WindowShuffle(len(SIZES), 3, seed=4)
    assert shuffle.windows == 3
    epochs = [epoch_of(shuffle, epoch) for epoch in range(2)]
    everything = [(block, row) for block, size in enumerate(SIZES) for row in range(size)]
    assert [sorted(rows) for rows in epochs] == [everything, everything]
    assert epochs[0] != epochs[1] and epochs[0] != epoch_of(WindowShuffle(len(SIZES), 3, seed=5), 0)


def test_any_position_can_be_asked_alone() -> None:
    shuffle = WindowShuffle(len(SIZES), 3, seed=4)
    sizes = [SIZES[block] for block in shuffle.blocks_of(1)]
    whole = shuffle.rows_of(1, np.arange(sum(sizes)), sizes)
    assert [shuffle.rows_of(1, np.array([i]), sizes)[0] for i in range(sum(sizes))] == whole
    # Blocks of a window are mixed.
    assert len({index for index, _ in whole[:6]}) > 1
