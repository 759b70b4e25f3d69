"""Which samples each step reads: a pure function of (seed, step), prefetched by torch's DataLoader."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain

import numpy as np
from torch.utils.data import DataLoader, Dataset

from headstart.core.contracts import BatchSource
from headstart.core.data import Batch, Ints, MixtureComponent, Sample
from headstart.core.randomness import permute
from headstart.training.shuffling import BlockShuffle

WINDOW = 8
"""Batches that are sorted by length together, where lengths differ: enough to avoid most padding."""
_CHUNK = 4096
"""Positions of an epoch that are shuffled at a time: 4,096 take hardly longer than the 32 of a batch."""


def samples_of_step(
    step: int, batch_size: int, length: int, seed: int, before: int = 0, shuffle: BlockShuffle | None = None
) -> list[Sample]:
    """Return the samples of one global batch; epochs follow each other without a short batch at their end.

    `before` is the number of samples that were read in batches of other sizes before step 0. Without `shuffle`, the
    order of an epoch is a permutation of all samples.
    """
    first = before + step * batch_size
    return _samples(np.arange(first, first + batch_size), length, seed, shuffle=shuffle)


def samples_by_length(step: int, batch_size: int, lengths: Sequence[int], seed: int) -> list[Sample]:
    """Return the samples of one global batch, grouped by length to avoid padding.

    Algorithm: take the samples of a window of batches, sort them by length, cut them into batches, and shuffle the
    batches. Each window holds the samples that it would hold unsorted, so an epoch still reads every sample once. A
    window is at most one epoch long: with few samples, sorting would otherwise fill a batch with copies of one sample.
    """
    width = max(1, min(WINDOW, len(lengths) // batch_size))
    window, index = divmod(step, width)
    first = window * width * batch_size
    samples = _samples(np.arange(first, first + width * batch_size), len(lengths), seed)
    samples.sort(key=lambda sample: (lengths[sample.index], sample))
    batch = int(permute([index], width, seed, window, "windows")[0])
    return samples[batch * batch_size : (batch + 1) * batch_size]


def samples_by_share(
    step: int, batch_size: int, parts: Sequence[MixtureComponent], seed: int, before: int = 0,
    shuffles: Sequence[BlockShuffle] = (),
) -> list[Sample]:  # fmt: skip
    """Return the samples of one global batch of a mixture: each part at its share, in epochs of its own.

    The samples of a part are numbered after those of the parts before it.
    """
    counts = drawn(before + step * batch_size, parts)
    turns: list[list[int]] = [[] for _ in parts]
    order: list[int] = []
    for index, turn in _merge(counts, parts, batch_size):
        turns[index].append(turn)
        order.append(index)
    first, samples = 0, []
    for i, (part, taken) in enumerate(zip(parts, turns, strict=True)):
        shuffle = shuffles[i] if shuffles else None
        samples.append(iter(_samples(np.asarray(taken, dtype=np.int64), part.size, seed, first, shuffle)))
        first += part.size
    return [next(samples[index]) for index in order]


def samples_by_share_and_length(
    step: int, batch_size: int, parts: Sequence[MixtureComponent], lengths: Sequence[int], seed: int
) -> list[Sample]:
    """Return the samples of one global batch of a mixture, grouped by length within each part to avoid padding.

    Algorithm: take a window of the batches that `samples_by_share` gives, sort the samples of each part by length, and
    deal them to the batches again, so that each batch keeps its number of samples of each part. The batches of a
    window are read in a shuffled order. A window reads no sample of a part twice.
    """
    once = min(part.size / (part.share * batch_size) for part in parts)
    width = max(1, min(WINDOW, int(once)))
    window, index = divmod(step, width)
    batches = [samples_by_share(window * width + i, batch_size, parts, seed) for i in range(width)]
    ends = list(accumulate(part.size for part in parts))
    by_part: list[list[Sample]] = [[] for _ in parts]
    for sample in chain.from_iterable(batches):
        by_part[bisect_right(ends, sample.index)].append(sample)
    for samples in by_part:
        samples.sort(key=lambda sample: (lengths[sample.index], sample))
    dealt = [iter(samples) for samples in by_part]
    regrouped = [[next(dealt[bisect_right(ends, sample.index)]) for sample in batch] for batch in batches]
    return regrouped[int(permute([index], width, seed, window, "windows")[0])]


def drawn(position: int, parts: Sequence[MixtureComponent]) -> list[int]:
    """Return how many of the first `position` samples come from each part.

    Algorithm: the n-th sample of a part with share s is due at (n + 1/2) / s, and samples are read in the order of
    their due times. A count never differs from its share of the whole by more than the number of parts.
    """
    # At most position + parts / 2 samples are due before any time, so these are certainly among the first.
    counts = [max(0, math.floor((position - len(parts)) * part.share - 0.5)) for part in parts]
    for _ in _merge(counts, parts, position - sum(counts)):
        pass
    return counts


def _merge(counts: list[int], parts: Sequence[MixtureComponent], number: int) -> Iterator[tuple[int, int]]:
    """Yield the next samples as (part, position within the part), and add them to `counts`."""
    due = [((count + 0.5) / part.share, index) for index, (count, part) in enumerate(zip(counts, parts, strict=True))]
    heapq.heapify(due)
    for _ in range(number):
        _, index = due[0]
        yield index, counts[index]
        counts[index] += 1
        heapq.heapreplace(due, ((counts[index] + 0.5) / parts[index].share, index))


def _samples(
    positions: Ints, length: int, seed: int, first: int = 0, shuffle: BlockShuffle | None = None
) -> list[Sample]:
    epochs, offsets = positions // length, positions % length
    samples: list[Sample] = []
    for epoch in np.unique(epochs):
        chunks, positions_in_chunk = np.divmod(offsets[epochs == epoch], _CHUNK)
        for chunk in np.unique(chunks):
            indices = _shuffled(int(chunk), length, seed, int(epoch), shuffle)
            indices = indices[positions_in_chunk[chunks == chunk]]
            samples.extend(Sample(int(epoch), first + index) for index in indices.tolist())
    return samples


@lru_cache(maxsize=64)
def _shuffled(chunk: int, length: int, seed: int, epoch: int, shuffle: BlockShuffle | None) -> Ints:
    positions = np.arange(chunk * _CHUNK, min((chunk + 1) * _CHUNK, length))
    return permute(positions, length, seed, epoch) if shuffle is None else shuffle.rows(positions, length, seed, epoch)


def global_batch(feed: BatchSource, step: int, batch_size: int, seed: int, before: int = 0) -> list[Sample]:
    """Return the samples of one step: sorted by length, drawn by share, or plain, as the source requires.

    A source with a method `order` has an order of its own, and returns the samples at a range of positions.
    """
    order = getattr(feed, "order", None)
    if order is not None:
        first = before + step * batch_size
        samples: list[Sample] = order(range(first, first + batch_size))
        return samples
    if feed.lengths is not None:
        assert not before, "windows of sorted batches need one batch size"
        if feed.parts:
            return samples_by_share_and_length(step, batch_size, feed.parts, feed.lengths, seed)
        return samples_by_length(step, batch_size, feed.lengths, seed)
    shuffles = shuffles_of(feed)
    if feed.parts:
        return samples_by_share(step, batch_size, feed.parts, seed, before, shuffles)
    return samples_of_step(step, batch_size, len(feed), seed, before, shuffles[0] if shuffles else None)


def shuffles_of(feed: BatchSource) -> Sequence[BlockShuffle]:
    """Return how a source shuffles each of its parts, its attribute `shuffles`; empty for full permutations."""
    shuffles: Sequence[BlockShuffle] = getattr(feed, "shuffles", ())
    return shuffles


def prefetch(feed: BatchSource, step: int, batch_size: int, seed: int, before: int = 0) -> None:
    """Start to fetch the blocks of rows that will be read about one buffer after a step, from a store."""
    if not (shuffles := shuffles_of(feed)) or not getattr(feed, "read_ahead", 0):
        return
    ends = [before + step * batch_size, before + (step + 1) * batch_size]
    parts = feed.parts or [MixtureComponent(len(feed), 1.0)]
    starts, stops = (drawn(end, parts) if feed.parts else [end] for end in ends)
    first = 0
    for part, shuffle, start, stop in zip(parts, shuffles, starts, stops, strict=True):
        for low, high in shuffle.ahead(start, stop, part.size, seed):
            feed.prefetch(first + low, first + high)  # type: ignore[attr-defined]
        first += part.size


def count_micro_batches(batch_size: int, micro_batch_size: int, processes: int = 1) -> int:
    """Return the number of micro-batches in a global batch, the same for each process.

    `micro_batch_size` is the largest number of samples in one of them.
    """
    return processes * math.ceil(math.ceil(batch_size / processes) / micro_batch_size)


@dataclass(frozen=True)
class StepBatches(Dataset[list[Batch]]):
    """A dataset whose item s is the list of micro-batches that one process reads in step s.

    The global batch is divided into `count` micro-batches, each of every `count`-th sample, so that similar lengths and
    the parts of a mixture are spread over all of them. A process takes every `size`-th micro-batch. One process and
    several thus read the same micro-batches, if their number is the same.
    """

    feed: BatchSource
    batch_size: int
    micro_batch_size: int
    seed: int
    before: int = 0
    """Samples that were read in batches of other sizes before step 0."""
    rank: int = 0
    size: int = 1
    """Number of processes."""

    def __getitem__(self, step: int) -> list[Batch]:
        prefetch(self.feed, step, self.batch_size, self.seed, self.before)
        samples = self.samples(step)
        own = range(self.rank, min(self.count, len(samples)), self.size)
        return [self.feed.batch(samples[number :: self.count]) for number in own]

    @property
    def count(self) -> int:
        """Return the number of micro-batches in a global batch, over all processes."""
        return count_micro_batches(self.batch_size, self.micro_batch_size, self.size)

    def samples(self, step: int) -> list[Sample]:
        """Return the samples of the global batch of a step, for all processes."""
        return global_batch(self.feed, step, self.batch_size, self.seed, self.before)


class _CountFrom:
    """A sampler that counts steps upwards without end, from the step at which a run resumes."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __iter__(self) -> Iterator[int]:
        step = self.step
        while True:
            yield step
            step += 1


def batches_from(step: int, batches: StepBatches, workers: int = 0, pin: bool = False) -> Iterator[list[Batch]]:
    """Yield the micro-batches of step, step + 1, … without end, prepared by `workers` processes.

    If the source has an attribute `read_ahead`, because its rows come from a store, and there are no workers, as many
    threads prepare the next steps. Otherwise `pin` puts the batches in pinned memory.
    """
    read_ahead = getattr(batches.feed, "read_ahead", 0)
    if read_ahead and not workers:
        return _ahead(step, batches, read_ahead)
    loader: DataLoader[list[Batch]] = DataLoader(
        batches, batch_size=None, sampler=_CountFrom(step), num_workers=workers,
        prefetch_factor=2 if workers else None, pin_memory=pin,
    )  # fmt: skip
    return iter(loader)


def _ahead(step: int, batches: StepBatches, depth: int) -> Iterator[list[Batch]]:
    """Yield the batches of step, step + 1, … while threads prepare the next `depth` steps."""
    pool = ThreadPoolExecutor(depth, thread_name_prefix="headstart-read-ahead")
    pending: deque[Future[list[Batch]]] = deque()
    try:
        while True:
            while len(pending) <= depth:
                pending.append(pool.submit(batches.__getitem__, step))
                step += 1
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
