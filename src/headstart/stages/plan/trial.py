"""A few timed steps of the loop that a run will use, with its compilation, optimizer and gradient clipping."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from headstart.core.data import Sample
from headstart.training.batches import WINDOW
from headstart.training.callbacks import Callback
from headstart.training.loop import Loop, StepResult
from headstart.training.memory import free_bytes
from headstart.training.settings import TrainingSettings

STEPS = WINDOW
"""Number of timed steps: texts that are sorted by length come in windows of this many batches."""
_WARM_UP = 2
"""Untimed steps before them: the first compiles and allocates memory, the second still has cold caches."""

BuildLoop = Callable[[TrainingSettings, Sequence[Callback]], Loop]


@dataclass(frozen=True)
class Trial:
    """What the timed steps showed."""

    tokens_per_second: float
    tokens_per_sample: float
    flops_per_token: float
    cores: float
    """The fraction of its threads' time that the process got: below 1 if other processes use the CPU."""
    memory: str = ""
    """The memory of a step, and what fits into that of the device."""


@dataclass
class Stopwatch(Callback):
    """Records clock, CPU time and tokens at the end of every step."""

    clock: list[float] = field(default_factory=list)
    cpu_time: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def on_train_begin(self, loop: Loop) -> None:
        """Record the start of the first step."""
        self._record(loop)

    def on_step_end(self, loop: Loop, result: StepResult) -> None:
        """Record the end of a step."""
        self._record(loop)

    def _record(self, loop: Loop) -> None:
        loop.synchronize()
        self.clock.append(time.monotonic())
        self.cpu_time.append(time.process_time())
        self.tokens.append(loop.progress.tokens)


def time_steps(build: BuildLoop, settings: TrainingSettings, sorted_by_length: bool = False) -> Trial:
    """Build a loop with a budget of a few steps and no evaluation or checkpoints, run it, and return its speed.

    The time of a step is the median if all steps read the same number of tokens, else the mean.
    """
    warm_up = WINDOW if sorted_by_length else _WARM_UP
    watch = Stopwatch()
    loop = build(settings.model_copy(update={"budget": f"{warm_up + STEPS} steps"}), [watch])
    loop.run()
    tokens = [after - before for before, after in pairwise(watch.tokens[warm_up:])]
    seconds = [after - before for before, after in pairwise(watch.clock[warm_up:])]
    total = sum(seconds) if len(set(tokens)) > 1 else STEPS * statistics.median(seconds)
    phase, device = loop.phases.all[0], loop.train_step.device.type
    return Trial(
        tokens_per_second=sum(tokens) / total,
        tokens_per_sample=sum(tokens) / (STEPS * phase.samples),
        flops_per_token=phase.flops_per_token,
        cores=core_fraction(watch, warm_up, device),
        memory=_memory(loop),
    )


def _memory(loop: Loop) -> str:
    """Return in words what a step needs and which micro-batch would fit into the memory that is free now."""
    phase, step = loop.phases.all[0], loop.train_step
    samples = min(phase.samples, loop.settings.micro_batch_for(phase.samples, phase.samples))
    needs = step.memory(lambda count: phase.feed.batch([Sample(0, i % len(phase.feed)) for i in range(count)]))
    free = free_bytes(step.device)
    words = (
        f"about {needs.of(samples) / 1e9:.2g} GB in micro-batches of {samples}, {needs.state / 1e9:.2g} GB of it state"
    )
    return words if free is None else f"{words}; up to {needs.fitting(free):,} samples fit into what is free here"


def core_fraction(watch: Stopwatch, warm_up: int, device: str) -> float:
    """Return the fraction of its threads' time that the process got; 1 on a GPU, where CPU time does not show it."""
    if device != "cpu":
        return 1.0
    computed, passed = (times[-1] - times[warm_up] for times in (watch.cpu_time, watch.clock))
    return min(1.0, computed / passed / torch.get_num_threads())
