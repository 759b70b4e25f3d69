"""Stretches of one run that read different batches: short rows first, long ones later; few rows first, many later."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from headstart.core.contracts import BatchSource
from headstart.training.checkpoint import Progress


@dataclass(frozen=True)
class Phase:
    """What is read, and how much of it in a step, from a share of the budget on."""

    start: float
    """The share of the budget at which it begins; 0 for the first."""
    feed: BatchSource
    batch_size: int
    flops_per_token: float = 0.0
    part: float = 1.0
    """The share of the batch size that an update reads, below 1 while batches grow."""

    @property
    def samples(self) -> int:
        """Return how many samples an update reads."""
        return max(1, round(self.batch_size * self.part))


class Phases:
    """The phases of a run; which of them it is in, and since when, stands in its progress alone."""

    def __init__(self, phases: Sequence[Phase]) -> None:
        """Take the phases in the order of their starts."""
        self.all = list(phases)

    def enter(self, progress: Progress, share: float) -> bool:
        """Enter the phases whose start has come, noting at which step; say whether there was one."""
        before = len(progress.phases)
        while len(progress.phases) < len(self.all) and share >= self.all[len(progress.phases)].start - 1e-9:
            progress.phases.append(progress.step)
        return len(progress.phases) > before

    def current(self, progress: Progress) -> Phase:
        """Return the phase that a run is in."""
        return self.all[len(progress.phases) - 1]

    def steps_of(self, progress: Progress) -> Iterator[tuple[Phase, int]]:
        """Yield each phase that was entered, with the number of steps taken in it."""
        spans = pairwise([*progress.phases, progress.step])
        yield from ((phase, stop - start) for phase, (start, stop) in zip(self.all, spans, strict=False))

    def feed_step(self, progress: Progress) -> int:
        """Return the next step as the current feed counts: one that is read again goes on where it was left."""
        now, taken = self.current(progress), self.steps_of(progress)
        return sum(steps for p, steps in taken if p.feed is now.feed and p.samples == now.samples)

    def feed_before(self, progress: Progress) -> int:
        """Return how many samples of the current feed were read in updates of other sizes than the current one."""
        now, taken = self.current(progress), self.steps_of(progress)
        return sum(steps * p.samples for p, steps in taken if p.feed is now.feed and p.samples != now.samples)


def growing(phases: Sequence[Phase], ratio: float, start: float) -> list[Phase]:
    """Return the phases with batches that double from a part of their size, over the first `ratio` of the budget."""
    if ratio == 0:
        return list(phases)
    parts = [start * 2**n for n in range(math.ceil(math.log2(1 / start) - 1e-9))]
    grows = [(ratio * place / len(parts), part) for place, part in enumerate(parts)] + [(ratio, 1.0)]
    found = []
    for share in sorted({phase.start for phase in phases} | {share for share, _ in grows}):
        phase = [phase for phase in phases if phase.start <= share][-1]
        part = [part for begins, part in grows if begins <= share][-1]
        found.append(replace(phase, start=share, part=part))
    return found
