"""Progress of a run on stderr: a rich bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from headstart.core.log import logger
from headstart.training.callbacks import Callback

if TYPE_CHECKING:
    from headstart.training.loop import Loop


class ProgressCallback(Callback):
    """Shows loss, tokens per second and time left: as a live bar, or without a terminal as a line every half minute."""

    def __init__(self, title: str, quiet: bool = False, interval: float = 30.0) -> None:
        """Take the title of the bar and the seconds between two lines; `quiet` shows nothing."""
        self.title, self.quiet, self.interval = title, quiet, interval
        self._bar: Progress | None = None

    def on_train_begin(self, loop: Loop) -> None:
        """Start the bar if stderr is a terminal."""
        self._started = self._last_line = time.monotonic()
        self._first_fraction: float | None = None
        self._validation: list[str] = []
        if not self.quiet and sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=8),
                TextColumn("{task.percentage:>3.0f}% {task.fields[text]}"),
                console=Console(stderr=True),
            )
            self._task: TaskID = self._bar.add_task(self.title, total=1.0, text="")
            self._bar.start()

    def on_log(self, loop: Loop, values: Mapping[str, float]) -> None:
        """Show the newest values."""
        validation = [
            f"{n.removeprefix('validation/')} {v:.3f}" for n, v in values.items() if n.startswith("validation/")
        ]
        self._validation = validation or self._validation
        if self.quiet or "loss" not in values:
            return
        fraction, now = values["share"], time.monotonic()
        text = f"loss {values['loss']:.3f} · {values['tokens_per_second']:,.0f} tokens/s · {self._left(fraction)} left"
        if self._bar:
            # Eighty columns have room for one metric.
            text += "".join(f" · held-out {metric}" for metric in self._validation[:1])
            self._bar.update(self._task, completed=min(fraction, 1.0), text=text)
        elif now - self._last_line >= self.interval or fraction >= 1:
            self._last_line = now
            text += f" · held-out {' '.join(self._validation)}" if self._validation else ""
            logger.info("%s %3.0f%% step %s · %s", self.title, 100 * fraction, f"{loop.progress.step:,}", text)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar:
            self._bar.stop()
            self._bar = None

    def _left(self, fraction: float) -> str:
        """Return the time left, by the speed since the first log entry."""
        if self._first_fraction is None:
            self._first_fraction = fraction
        done = fraction - self._first_fraction
        if done <= 0:
            return "?"
        return time_left(max(0.0, (1 - fraction) / done * (time.monotonic() - self._started)))


def time_left(seconds: float) -> str:
    """Return a remaining time in the unit that fits it."""
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
