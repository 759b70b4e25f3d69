"""Which samples make up which step: a pure function of (seed, step), read ahead by torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import DataLoader, Dataset

from headstart.core.contracts import Batch, Learner, Sample
from headstart.core.randomness import permute

WINDOW = 8
"""Batches that are sorted together by length, where lengths differ: enough to spare most padding."""


def samples_of_step(step: int, batch_size: int, length: int, seed: int) -> list[Sample]:
    """Return the samples of one global batch; epochs follow each other without a short batch between them."""
    return _samples(step * batch_size, (step + 1) * batch_size, length, seed)


def samples_by_length(step: int, batch_size: int, lengths: Sequence[int], seed: int) -> list[Sample]:
    """Like `samples_of_step`, with texts of like length together: windows of batches are sorted, then shuffled.

    Each window holds just the samples that it would hold unsorted, so an epoch still sees every sample once. No
    window is longer than an epoch: of few samples, sorting would else fill a batch with copies of the same ones.
    """
    width = max(1, min(WINDOW, len(lengths) // batch_size))
    window, place = divmod(step, width)
    samples = _samples(window * width * batch_size, (window + 1) * width * batch_size, len(lengths), seed)
    samples.sort(key=lambda sample: (lengths[sample.index], sample))
    batch = int(permute([place], width, seed, window, "windows")[0])
    return samples[batch * batch_size : (batch + 1) * batch_size]


def _samples(start: int, stop: int, length: int, seed: int) -> list[Sample]:
    positions = np.arange(start, stop, dtype=np.int64)
    epochs, offsets = positions // length, positions % length
    samples: list[Sample] = []
    for epoch in np.unique(epochs):
        indices = permute(offsets[epochs == epoch], length, seed, int(epoch))
        samples.extend(Sample(int(epoch), int(index)) for index in indices)
    return samples


class _Steps(Dataset[list[Batch]]):
    """Item s is the list of micro-batches of step s."""

    def __init__(self, learner: Learner, batch_size: int, micro_batch_size: int, seed: int) -> None:
        self.learner, self.batch_size, self.micro, self.seed = learner, batch_size, micro_batch_size, seed

    def __getitem__(self, step: int) -> list[Batch]:
        lengths = self.learner.lengths
        if lengths is None:
            samples = samples_of_step(step, self.batch_size, len(self.learner), self.seed)
        else:
            samples = samples_by_length(step, self.batch_size, lengths, self.seed)
        return [self.learner.batch(samples[i : i + self.micro]) for i in range(0, len(samples), self.micro)]


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
    step: int, learner: Learner, batch_size: int, micro_batch_size: int, seed: int, workers: int
) -> Iterator[list[Batch]]:
    """Yield the micro-batches of step, step + 1, … without end."""
    steps = _Steps(learner, batch_size, micro_batch_size, seed)
    loader: DataLoader[list[Batch]] = DataLoader(
        steps, batch_size=None, sampler=_From(step), num_workers=workers, prefetch_factor=2 if workers else None
    )
    return iter(loader)
