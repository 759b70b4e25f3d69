"""Phases of one run that read different batches: short rows before long ones, small batches before large ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from headstart.core.contracts import BatchSource
from headstart.core.errors import RecipeError
from headstart.training.checkpoint import Progress
from headstart.training.settings import TrainingSettings
from headstart.training.sharding import require_even
from headstart.training.world import World


@dataclass(frozen=True)
class Phase:
    """What a step reads, and how much of it, from a fraction of the budget on."""

    start: float
    """The used fraction of the budget at which the phase begins; 0 for the first."""
    feed: BatchSource
    batch_size: int
    flops_per_token: float = 0.0
    """FLOPs of a training step per token, with all parameters trained."""
    flops_by_stage: Sequence[float] = ()
    """The same for each number of late parameter groups that are trained, from 0 on; empty if none is frozen."""
    batch_fraction: float = 1.0
    """The fraction of the batch size that a step reads; below 1 during batch warmup."""

    def flops_in(self, stage: int) -> float:
        """Return the FLOPs per token while this number of late groups is trained."""
        return self.flops_by_stage[stage] if self.flops_by_stage else self.flops_per_token

    @property
    def samples(self) -> int:
        """Return the number of samples per step."""
        return max(1, round(self.batch_size * self.batch_fraction))


class Phases:
    """The phases of a run. Which phase a run is in, and since which step, is stored in its progress only."""

    def __init__(self, phases: Sequence[Phase]) -> None:
        """Take the phases in the order of their starts."""
        self.all = list(phases)

    def require_valid(self, world: World, settings: TrainingSettings) -> None:
        """Raise if a phase's batches cannot be split over the processes or do not fit the settings."""
        for phase in self.all:
            if phase.samples < world.size:
                raise RecipeError(
                    f"one step reads {phase.samples} samples, but there are {world.size} processes",
                    allowed="Each process needs at least one sample per step",
                    do="Raise `training.batch_tokens` or `training.batch_size`, or start fewer processes",
                )
            if settings.shards_weights and world.size > 1:
                require_even(phase.samples, world, settings)
            if phase.feed.lengths is not None:
                require_constant_batch_size(settings)

    def enter(self, progress: Progress, fraction: float) -> bool:
        """Enter the phases whose start has passed and record the step; return True if there was one."""
        before = len(progress.phases)
        while len(progress.phases) < len(self.all) and fraction >= self.all[len(progress.phases)].start - 1e-9:
            progress.phases.append(progress.step)
        return len(progress.phases) > before

    def current(self, progress: Progress) -> Phase:
        """Return the phase that a run is in."""
        return self.all[len(progress.phases) - 1]

    def steps_of(self, progress: Progress) -> Iterator[tuple[Phase, int]]:
        """Yield each phase that the run has entered, with the number of steps taken in it."""
        spans = pairwise([*progress.phases, progress.step])
        yield from ((phase, stop - start) for phase, (start, stop) in zip(self.all, spans, strict=False))

    def feed_step(self, progress: Progress) -> int:
        """Return the next step of the current feed; a feed that returns in a later phase continues where it stopped."""
        now, taken = self.current(progress), self.steps_of(progress)
        return sum(steps for p, steps in taken if p.feed is now.feed and p.samples == now.samples)

    def feed_before(self, progress: Progress) -> int:
        """Return the samples of the current feed that were read at other batch sizes than the current one."""
        now, taken = self.current(progress), self.steps_of(progress)
        return sum(steps * p.samples for p, steps in taken if p.feed is now.feed and p.samples != now.samples)


def with_batch_warmup(phases: Sequence[Phase], ratio: float, start: float) -> list[Phase]:
    """Return the phases with a batch size that doubles from `start` to 1, over the first `ratio` of the budget."""
    if ratio == 0:
        return list(phases)
    doublings = [start * 2**n for n in range(math.ceil(math.log2(1 / start) - 1e-9))]
    steps = [(ratio * n / len(doublings), fraction) for n, fraction in enumerate(doublings)] + [(ratio, 1.0)]
    warmed = []
    for begin in sorted({phase.start for phase in phases} | {begin for begin, _ in steps}):
        phase = [phase for phase in phases if phase.start <= begin][-1]
        fraction = [fraction for since, fraction in steps if since <= begin][-1]
        warmed.append(replace(phase, start=begin, batch_fraction=fraction))
    return warmed


def require_constant_batch_size(settings: TrainingSettings) -> None:
    """Raise if the batch size grows although samples are sorted by length."""
    if settings.batch_warmup_ratio:
        raise RecipeError(
            f"`training.batch_warmup_ratio` is {settings.batch_warmup_ratio:g}, but texts are sorted by length",
            allowed="Sorting by length needs a constant batch size; only pre-training supports batch warmup",
            do="Remove `training.batch_warmup_ratio`",
        )
