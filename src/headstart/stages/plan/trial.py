"""A few steps of the very loop that a run goes through, timed: compiled or not, with its optimizer and its clipping."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from headstart.training.batches import WINDOW
from headstart.training.budget import Budget
from headstart.training.loop import Loop

STEPS = WINDOW
"""Steps that are timed: texts of differing length come in windows of as many."""
_WARM_UP = 2
"""Steps before them: the first compiles and sets up memory, the second still finds caches cold."""


@dataclass(frozen=True)
class Trial:
    """What the timed steps gave."""

    tokens_per_second: float
    tokens_per_sample: float
    cores: float
    """The share of its threads' time that the process had: less than 1 where others want the machine as well."""


@dataclass
class _Stopwatch:
    """Notes the seconds and tokens of every step, as the loop itself finds them, and the time that it computed."""

    clocks: list[tuple[float, float]] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=lambda: [0.0])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take down a step."""
        if "tokens_per_second" in values:
            self.clocks.append((time.process_time(), time.monotonic()))
            self.speeds.append(values["tokens_per_second"])
            self.tokens.append(values["tokens"])

    def close(self) -> None:
        """Nothing is open."""


def timed(loop: Loop) -> Trial:
    """Run some steps of a new loop and return its speed; its weights are of no use afterwards.

    Time is the median step's where all steps read as much, else that of all together.
    """
    loop.settings = loop.settings.model_copy(
        update={"logging_steps": 1, "eval_count": 0, "early_stopping_patience": None}
    )
    before = _WARM_UP if loop.learner.lengths is None else WINDOW
    loop.budget = Budget(before + STEPS, "steps")
    loop.learner.validate = dict  # type: ignore[method-assign]  # No part of a step.
    watch = _Stopwatch()
    loop.run([watch])
    read = [after - until for until, after in pairwise(watch.tokens)][before:]
    seconds = [tokens / speed for tokens, speed in zip(read, watch.speeds[before:], strict=True)]
    total = sum(seconds) if len(set(read)) > 1 else len(seconds) * statistics.median(seconds)
    computed, passed = (after - until for until, after in zip(watch.clocks[before - 1], watch.clocks[-1], strict=True))
    samples = STEPS * loop.phases.all[0].samples
    return Trial(sum(read) / total, sum(read) / samples, min(1.0, computed / passed / torch.get_num_threads()))
