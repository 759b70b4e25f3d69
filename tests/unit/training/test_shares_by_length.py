"""Mixtures whose batches are grouped by length: shares are kept, every sample is read, and there is less padding."""

from __future__ import annotations

from collections import Counter

import numpy as np

from headstart.core.data import MixtureComponent
from headstart.training.batches import samples_by_share, samples_by_share_and_length

PARTS = [MixtureComponent(300, 0.75), MixtureComponent(90, 0.25)]
LENGTHS = np.random.default_rng(0).integers(4, 60, 390).tolist()


def test_every_batch_keeps_its_shares_and_a_window_reads_what_it_would_unsorted():
    grouped = [samples_by_share_and_length(step, 16, PARTS, LENGTHS, seed=3) for step in range(16)]
    plain = [samples_by_share(step, 16, PARTS, seed=3) for step in range(16)]
    assert all(sum(sample.index < 300 for sample in batch) == 12 for batch in grouped)
    assert Counter(s for batch in grouped for s in batch) == Counter(s for batch in plain for s in batch)
    assert grouped == [samples_by_share_and_length(step, 16, PARTS, LENGTHS, seed=3) for step in range(16)]
    assert grouped != [samples_by_share_and_length(step, 16, PARTS, LENGTHS, seed=4) for step in range(16)]


def test_a_batch_has_less_padding_within_each_part():
    def padded(batches):
        rows = [[s for s in batch if (s.index < 300) == own] for batch in batches for own in (True, False)]
        return sum(len(part) * max(LENGTHS[s.index] for s in part) for part in rows)

    grouped = padded([samples_by_share_and_length(step, 16, PARTS, LENGTHS, seed=3) for step in range(16)])
    plain = padded([samples_by_share(step, 16, PARTS, seed=3) for step in range(16)])
    assert grouped < 0.75 * plain


def test_a_small_part_does_not_fill_a_batch_with_copies():
    parts = [MixtureComponent(300, 0.5), MixtureComponent(8, 0.5)]
    for step in range(12):
        batch = samples_by_share_and_length(step, 16, parts, LENGTHS, seed=3)
        assert max(Counter(batch).values()) == 1
