"""Rows shuffled in buffers of blocks: each once per epoch, at any position by itself, and few blocks at a time."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.core.data import MixtureComponent
from headstart.training.batches import StepBatches, samples_of_step
from headstart.training.shuffling import BlockShuffle

shuffles = st.builds(BlockShuffle, st.integers(1, 30), st.integers(1, 9))


@given(shuffles, st.integers(1, 700), st.integers(0, 2**32), st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_every_row_comes_once_per_epoch_and_each_position_stands_alone(shuffle, length, seed, epoch):
    rows = shuffle.rows(np.arange(length), length, seed, epoch)
    assert sorted(rows.tolist()) == list(range(length))
    some = np.random.default_rng(seed).permutation(length)[:20]
    assert np.array_equal(shuffle.rows(some, length, seed, epoch), rows[some])


@given(shuffles, st.integers(40, 700), st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_a_stretch_of_training_reads_the_blocks_of_at_most_two_buffers(shuffle, length, seed):
    size = shuffle.buffer_rows
    rows = shuffle.rows(np.arange(length), length, seed, 0)
    for start in range(0, length - size, size):
        window = rows[start : start + size]
        touched = {int(row) // shuffle.block_rows for row in window}
        assert len(touched) <= 4 * shuffle.buffer_blocks + 4, "rows of the whole corpus are mixed"


def test_a_buffer_mixes_blocks_from_everywhere():
    shuffle, length = BlockShuffle(100, 20), 100_000
    rows = shuffle.rows(np.arange(2000), length, 3, 0)
    assert len({int(row) // 100 for row in rows}) in range(20, 42)
    assert rows.std() > 0.2 * length, "the blocks of a buffer are neighbours"
    assert abs(np.corrcoef(np.arange(2000), rows)[0, 1]) < 0.1, "the rows of a buffer are read in order"
    assert not np.array_equal(rows, shuffle.rows(np.arange(2000), length, 3, 1))
    assert not np.array_equal(rows, shuffle.rows(np.arange(2000), length, 4, 0))


class Feed:
    """A source in a store that records which rows were fetched in advance, and which were read."""

    lengths, read_ahead = None, 1

    def __init__(self, sizes, shuffles):
        self.sizes, self.shuffles = sizes, shuffles
        several = len(sizes) > 1
        self.parts = [MixtureComponent(size, (2 - i) / 3) for i, size in enumerate(sizes)] if several else []
        self.fetched, self.missed, self.read = set(), 0, 0

    def __len__(self):
        return sum(self.sizes)

    def prefetch(self, first, last):
        assert 0 <= first < last <= len(self)
        self.fetched |= set(range(first, last))

    def batch(self, samples):
        self.read += len(samples)
        self.missed += sum(sample.index not in self.fetched for sample in samples)
        return SimpleNamespace()


@pytest.mark.parametrize("sizes", [[1000], [600, 450]])
def test_blocks_are_fetched_a_buffer_before_they_are_read(sizes):
    feed = Feed(sizes, [BlockShuffle(25, 4)] * len(sizes))
    batches = StepBatches(feed, 8, 8, 5)
    for step in range(40):
        batches[step]
    assert feed.read == 320 and feed.missed == 0
    assert len(feed.fetched) < len(feed), "everything was fetched at once"


def test_a_resumed_run_reads_the_same_rows(monkeypatch):
    shuffle = BlockShuffle(16, 3)
    whole = [samples_of_step(step, 10, 333, 7, shuffle=shuffle) for step in range(80)]
    from headstart.training import batches

    batches._shuffled.cache_clear()
    assert [samples_of_step(step, 10, 333, 7, shuffle=shuffle) for step in reversed(range(80))] == whole[::-1]
    assert len({sample for step in whole for sample in step}) == 800
