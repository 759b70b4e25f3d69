"""Which samples each step reads: every sample once per epoch, as a pure function of seed and step."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.core.data import MixtureComponent, Sample
from headstart.core.randomness import permute
from headstart.training.batches import (
    WINDOW,
    StepBatches,
    batches_from,
    drawn,
    samples_by_length,
    samples_by_share,
    samples_of_step,
)

sizes = st.tuples(st.integers(1, 40), st.integers(1, 100), st.integers(0, 2**32)).filter(lambda t: t[0] <= t[1])


@given(sizes)
@settings(max_examples=30)
def test_every_sample_comes_once_per_epoch(given_sizes):
    batch_size, length, seed = given_sizes
    steps = -(-2 * length // batch_size)
    seen = [sample for step in range(steps) for sample in samples_of_step(step, batch_size, length, seed)]
    assert len(seen) == steps * batch_size
    assert seen[:length] != sorted(seen[:length]) or length < 8
    for epoch in range(2):
        assert sorted(seen[epoch * length : (epoch + 1) * length]) == [Sample(epoch, i) for i in range(length)]


@given(sizes, st.integers(1, 3))
@settings(max_examples=30)
def test_sorted_by_length_every_sample_still_comes_once_per_epoch(given_sizes, epochs):
    batch_size, length, seed = given_sizes
    lengths = [(7 * index) % 13 for index in range(length)]
    steps = -(-epochs * length // batch_size)
    width = max(1, min(WINDOW, length // batch_size))
    steps = -(-steps // width) * width
    seen = Counter(s for step in range(steps) for s in samples_by_length(step, batch_size, lengths, seed))
    assert max(seen.values()) == 1
    assert all(seen[Sample(epoch, index)] == 1 for epoch in range(epochs) for index in range(length))


def test_sorting_avoids_padding_and_shuffles_the_batches():
    lengths = np.random.default_rng(0).integers(5, 100, size=1000).tolist()

    def padding(samples_of) -> int:
        batches = [[lengths[s.index] for s in samples_of(step)] for step in range(24)]
        return sum(max(batch) * len(batch) - sum(batch) for batch in batches)

    plain = padding(lambda step: samples_of_step(step, 16, 1000, 0))
    by_length = padding(lambda step: samples_by_length(step, 16, lengths, 0))
    assert by_length < plain / 3
    means = [np.mean([lengths[s.index] for s in samples_by_length(step, 16, lengths, 0)]) for step in range(24)]
    assert means != sorted(means) and abs(np.corrcoef(means, range(24))[0, 1]) < 0.6


@pytest.mark.parametrize("rows", [32, 40, 100])
def test_few_rows_do_not_fill_a_batch_with_copies(rows):
    """With so few rows, sorting over several epochs would put the same text several times into one batch."""
    lengths = list(range(rows))
    for step in range(20):
        copies = Counter(s.index for s in samples_by_length(step, 32, lengths, 0))
        assert max(copies.values()) <= 2


@given(sizes, st.integers(0, 10**6))
@settings(max_examples=30)
def test_a_step_is_a_pure_function(given_sizes, step):
    batch_size, length, seed = given_sizes
    lengths = [index % 7 for index in range(length)]
    assert samples_of_step(step, batch_size, length, seed) == samples_of_step(step, batch_size, length, seed)
    assert samples_by_length(step, batch_size, lengths, seed) == samples_by_length(step, batch_size, lengths, seed)
    assert len(samples_by_length(step, batch_size, lengths, seed)) == batch_size


def test_a_long_epoch_is_one_permutation():
    length, seed = 10_000, 7
    samples = [sample for step in range(100) for sample in samples_of_step(step, 128, length, seed)]
    first, second = permute(np.arange(length), length, seed, 0), permute(np.arange(2_800), length, seed, 1)
    assert samples == [Sample(0, i) for i in first.tolist()] + [Sample(1, i) for i in second.tolist()]


def test_other_seeds_give_other_orders():
    assert samples_of_step(0, 8, 100, 0) != samples_of_step(0, 8, 100, 1)


mixtures = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 1000)), min_size=1, max_size=8).map(
    lambda pairs: [MixtureComponent(size, weight / sum(w for _, w in pairs)) for size, weight in pairs]
)


@given(mixtures, st.integers(0, 10**12), st.integers(0, 5000))
def test_every_part_has_its_share_of_any_range(parts, start, length):
    before, after = drawn(start, parts), drawn(start + length, parts)
    assert sum(before) == start and sum(after) == start + length
    for part, first, last in zip(parts, before, after, strict=True):
        assert abs(first - part.share * start) <= len(parts)
        assert last - first >= 0 and abs(last - first - part.share * length) <= 2 * len(parts)


@given(mixtures, st.integers(1, 40), st.integers(0, 2**32))
@settings(max_examples=30)
def test_each_part_is_read_epoch_after_epoch(parts, batch_size, seed):
    """A small part with a large share repeats in another order and with another epoch, hence with other masks."""
    steps = 12
    seen = [sample for step in range(steps) for sample in samples_by_share(step, batch_size, parts, seed)]
    counts = drawn(steps * batch_size, parts)
    first = 0
    for part, count in zip(parts, counts, strict=True):
        own = [s for s in seen if first <= s.index < first + part.size]
        assert len(own) == count
        for epoch in range(count // part.size):
            turn = own[epoch * part.size : (epoch + 1) * part.size]
            assert sorted(turn) == [Sample(epoch, first + index) for index in range(part.size)]
        first += part.size


@given(mixtures, st.integers(1, 20), st.integers(0, 10**9))
@settings(max_examples=30)
def test_a_step_of_a_mixture_is_a_pure_function(parts, batch_size, step):
    """The order of the samples does not depend on the batch size."""
    whole = samples_by_share(step, 2 * batch_size, parts, 7)
    halves = [samples_by_share(2 * step + half, batch_size, parts, 7) for half in (0, 1)]
    assert whole == halves[0] + halves[1]


def test_a_single_part_is_read_like_a_source_without_parts():
    assert samples_by_share(5, 8, [MixtureComponent(30, 1.0)], 3) == samples_of_step(5, 8, 30, 3)


@pytest.mark.parametrize("lengths", [None, [3, 9, 4, 4, 8, 1, 2, 6, 5, 7, 3, 2, 9, 9, 1, 1, 5, 5, 5, 5]])
def test_workers_change_nothing(toy, lengths):
    learner = toy.Learner(lengths=lengths)

    def first_steps(workers: int, start: int, count: int):
        stream = batches_from(start, StepBatches(learner, batch_size=8, micro_batch_size=3, seed=1), workers)
        return [next(stream) for _ in range(count)]

    alone, with_workers, later = first_steps(0, 0, 5), first_steps(2, 0, 5), first_steps(0, 3, 2)
    assert [len(step) for step in alone] == [3] * 5 and [len(b["ids"]) for b in alone[0]] == [3, 3, 2]
    for a, b in [*zip(alone, with_workers, strict=True), *zip(alone[3:], later, strict=True)]:
        for one, other in zip(a, b, strict=True):
            assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
