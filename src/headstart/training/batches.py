"""Which samples make up which step: a pure function of (seed, step), read ahead by torch's DataLoader."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from torch.utils.data import DataLoader, Dataset

from headstart.core.contracts import BatchSource
from headstart.core.data import Batch, Ints, MixtureComponent, Sample
from headstart.core.randomness import permute

WINDOW = 8
"""Batches that are sorted together by length, where lengths differ: enough to spare most padding."""
_STRETCH = 4096
"""Places of an epoch that are shuffled at a time: so many take hardly longer than the 32 of a batch."""


def samples_of_step(step: int, batch_size: int, length: int, seed: int, before: int = 0) -> list[Sample]:
    """Return the samples of one global batch; epochs follow each other without a short batch between them.

    `before` is how many were read in batches of other sizes, before step 0.
    """
    first = before + step * batch_size
    return _samples(np.arange(first, first + batch_size), length, seed)


def samples_by_length(step: int, batch_size: int, lengths: Sequence[int], seed: int) -> list[Sample]:
    """Like `samples_of_step`, with texts of like length together: windows of batches are sorted, then shuffled.

    Each window holds just the samples that it would hold unsorted, so an epoch still sees every sample once. No
    window is longer than an epoch: of few samples, sorting would else fill a batch with copies of the same ones.
    """
    width = max(1, min(WINDOW, len(lengths) // batch_size))
    window, place = divmod(step, width)
    first = window * width * batch_size
    samples = _samples(np.arange(first, first + width * batch_size), len(lengths), seed)
    samples.sort(key=lambda sample: (lengths[sample.index], sample))
    batch = int(permute([place], width, seed, window, "windows")[0])
    return samples[batch * batch_size : (batch + 1) * batch_size]


def samples_by_share(
    step: int, batch_size: int, parts: Sequence[MixtureComponent], seed: int, before: int = 0
) -> list[Sample]:
    """Like `samples_of_step`, from several parts, each in its share of any stretch and in epochs of its own.

    A part's samples bear the numbers after those of the parts before it.
    """
    counts = drawn(before + step * batch_size, parts)
    turns: list[list[int]] = [[] for _ in parts]
    order: list[int] = []
    for place, turn in _merge(counts, parts, batch_size):
        turns[place].append(turn)
        order.append(place)
    first, samples = 0, []
    for part, taken in zip(parts, turns, strict=True):
        samples.append(iter(_samples(np.asarray(taken, dtype=np.int64), part.size, seed, first)))
        first += part.size
    return [next(samples[place]) for place in order]


def drawn(position: int, parts: Sequence[MixtureComponent]) -> list[int]:
    """Return how many of the first `position` samples come from each part.

    The n-th sample of a part with the share s is due at (n + 1/2) / s, and samples follow each other in the order of
    these times, so that no count ever strays from its share of the whole by more than the number of parts.
    """
    # At most position + parts / 2 samples are due before any time, so these lie among the first for certain.
    counts = [max(0, math.floor((position - len(parts)) * part.share - 0.5)) for part in parts]
    for _ in _merge(counts, parts, position - sum(counts)):
        pass
    return counts


def _merge(counts: list[int], parts: Sequence[MixtureComponent], number: int) -> Iterator[tuple[int, int]]:
    """Yield the next samples as (part, which of the part's), and count them."""
    due = [((count + 0.5) / part.share, place) for place, (count, part) in enumerate(zip(counts, parts, strict=True))]
    heapq.heapify(due)
    for _ in range(number):
        _, place = due[0]
        yield place, counts[place]
        counts[place] += 1
        heapq.heapreplace(due, ((counts[place] + 0.5) / parts[place].share, place))


def _samples(positions: Ints, length: int, seed: int, first: int = 0) -> list[Sample]:
    epochs, offsets = positions // length, positions % length
    samples: list[Sample] = []
    for epoch in np.unique(epochs):
        stretches, places = np.divmod(offsets[epochs == epoch], _STRETCH)
        for stretch in np.unique(stretches):
            indices = _shuffled(int(stretch), length, seed, int(epoch))[places[stretches == stretch]]
            samples.extend(Sample(int(epoch), first + index) for index in indices.tolist())
    return samples


@lru_cache(maxsize=64)
def _shuffled(stretch: int, length: int, seed: int, epoch: int) -> Ints:
    return permute(np.arange(stretch * _STRETCH, min((stretch + 1) * _STRETCH, length)), length, seed, epoch)


def global_batch(feed: BatchSource, step: int, batch_size: int, seed: int, before: int = 0) -> list[Sample]:
    """Return the samples of one step of a feed, in the way that suits what the feed says of them."""
    if feed.lengths is not None:
        assert not before, "windows of sorted batches need one batch size"
        return samples_by_length(step, batch_size, feed.lengths, seed)
    if feed.parts:
        return samples_by_share(step, batch_size, feed.parts, seed, before)
    return samples_of_step(step, batch_size, len(feed), seed, before)


class _Steps(Dataset[list[Batch]]):
    """Item s is the list of micro-batches of step s that fall to one of `size` processes.

    It takes every size-th sample, so that texts of like length and parts of a mixture spread over all of them.
    """

    def __init__(
        self, feed: BatchSource, batch_size: int, micro_batch_size: int, seed: int, rank: int = 0, size: int = 1,
        before: int = 0,
    ) -> None:  # fmt: skip
        self.feed, self.batch_size, self.micro, self.seed = feed, batch_size, micro_batch_size, seed
        self.rank, self.size, self.before = rank, size, before

    def __getitem__(self, step: int) -> list[Batch]:
        samples = global_batch(self.feed, step, self.batch_size, self.seed, self.before)[self.rank :: self.size]
        return [self.feed.batch(samples[i : i + self.micro]) for i in range(0, len(samples), self.micro)]


class _From:
    """Counts steps upwards from the one at which a run goes on."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __iter__(self) -> Iterator[int]:
        step = self.step
        while True:
            yield step
            step += 1


def batches_from(
    step: int, feed: BatchSource, batch_size: int, micro_batch_size: int, seed: int, workers: int, rank: int = 0,
    size: int = 1, before: int = 0,
) -> Iterator[list[Batch]]:  # fmt: skip
    """Yield the micro-batches of step, step + 1, … without end; of those, one process's share."""
    steps = _Steps(feed, batch_size, micro_batch_size, seed, rank, size, before)
    loader: DataLoader[list[Batch]] = DataLoader(
        steps, batch_size=None, sampler=_From(step), num_workers=workers, prefetch_factor=2 if workers else None
    )
    return iter(loader)
