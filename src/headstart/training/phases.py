"""Stretches of one run that read different batches: short rows first, long ones later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headstart.core.contracts import Feed
from headstart.training.checkpoint import Progress


@dataclass(frozen=True)
class Phase:
    """What is read, and how much of it in a step, from a share of the budget on."""

    start: float
    """The share of the budget at which it begins; 0 for the first."""
    feed: Feed
    batch_size: int
    flops_per_token: float = 0.0


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
        feed = self.current(progress).feed
        return sum(steps for phase, steps in self.steps_of(progress) if phase.feed is feed)
