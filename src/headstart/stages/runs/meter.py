"""A cost meter whose price tag is saved while a run is in progress and continued when it resumes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from headstart.core import artifact
from headstart.evaluation.cost import CostConfig, Meter, PriceTag, ProcessCost
from headstart.training.callbacks import Callback
from headstart.training.world import World

if TYPE_CHECKING:
    from headstart.training.loop import Loop

_INTERVAL_SECONDS = 15.0


class RecordedMeter(Meter, Callback):
    """A meter that starts from the `cost.json` of earlier attempts and, as a callback, keeps it up to date.

    Seconds, energy and money of work that was lost in a crash have been paid for, so they stay in the price tag. Tokens
    and FLOPs are those of the loop's progress, which continues from a checkpoint. In a world of several processes every
    rank has a meter in its list of callbacks; rank 0 adds up what the ranks used and writes it.
    """

    def __init__(self, path: Path, config: CostConfig, energy: bool = True, world: World | None = None) -> None:
        """Read the cost of earlier attempts, if any."""
        self.path, self.world = path, world or World()
        self.written = time.monotonic()
        self._gathered_at = 0.0
        self._totals: tuple[int, float] | None = None
        self._peak: float | None = None
        super().__init__(_read(path) if self.world.is_main else None, config, energy)

    def tag(self) -> PriceTag:
        """Return the price tag until now, including earlier attempts."""
        tag = super().tag()
        if self._totals is None:
            return tag
        tag = replace(tag, tokens=self._totals[0], flops=self._totals[1])
        if self._peak is None or not tag.seconds:
            return tag
        used = f"{tag.flops / tag.seconds / self._peak:.1%} of {self._peak / 1e12:,.0f} TFLOP/s over the whole run"
        return replace(tag, assumptions=tag.assumptions | {"mfu": used})

    def set_totals(self, tokens: int, flops: float) -> None:
        """Set the tokens and FLOPs of all attempts together; they replace what the attempts counted."""
        self._totals = tokens, flops

    def on_train_begin(self, loop: Loop) -> None:
        """Start from the counters of the checkpoint that the run resumes from."""
        self._gathered_at = loop.progress.seconds
        self._peak = loop.train_step.peak_flops
        self._read_progress(loop)

    def on_log(self, loop: Loop, values: Mapping[str, float]) -> None:
        """Save the price tag if it is due."""
        self._read_progress(loop)
        # The clock of rank 0, which all ranks have: each of them takes part in the gathering, or none.
        if loop.progress.seconds - self._gathered_at >= _INTERVAL_SECONDS:
            self._gather(loop)
        self.write_if_due()

    def on_save_begin(self, loop: Loop) -> None:
        """Save the price tag of the checkpoint."""
        self._read_progress(loop)
        self._gather(loop)
        self.write()

    def on_train_end(self, loop: Loop) -> None:
        """Add up what all processes used."""
        self._read_progress(loop)
        self._gather(loop)

    def _read_progress(self, loop: Loop) -> None:
        self.set_totals(loop.progress.tokens, loop.progress.flops)

    def _gather(self, loop: Loop) -> None:
        self._gathered_at = loop.progress.seconds
        if self.world.size > 1:
            costs = self.world.all_gather(asdict(self.process_cost()))
            self.others = [ProcessCost(**cost) for rank, cost in enumerate(costs) if rank != self.world.rank]

    def write_if_due(self) -> None:
        """Save the price tag if the last time was 15 seconds ago or more."""
        if time.monotonic() - self.written >= _INTERVAL_SECONDS:
            self.write()

    def write(self) -> None:
        """Save the current price tag atomically, on rank 0."""
        self.written = time.monotonic()
        if self.world.is_main:
            artifact.write_whole(self.path, json.dumps(self.tag().to_dict(), indent=2) + "\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the clock and save the final price tag, also after an exception."""
        super().__exit__(kind, error, trace)
        if self.path.parent.is_dir():
            self.write()


def _read(path: Path) -> PriceTag | None:
    try:
        return PriceTag.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError):
        return None
