"""Progress of predictions on stderr: a rich bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from headstart.core.log import logger
from headstart.training.progress import time_left


class RowProgress:
    """Shows how many rows are done, rows per second and the time left; a line every half minute off a terminal."""

    def __init__(self, total: int, done: int, quiet: bool, interval: float = 30.0) -> None:
        """Start at `done` of `total` rows; `quiet` shows nothing."""
        self.total, self.first, self.done, self.quiet, self.interval = total, done, done, quiet, interval
        self.started = self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if not quiet and sys.stderr.isatty():
            text = TextColumn("{task.percentage:>3.0f}% {task.fields[text]}")
            self._bar = Progress(
                TextColumn("[bold]predict"), BarColumn(bar_width=8), text, console=Console(stderr=True)
            )
            self._task = self._bar.add_task("predict", total=max(total, 1), completed=done, text="")
            self._bar.start()

    def add(self, rows: int) -> None:
        """Count finished rows and show them."""
        self.done += rows
        if self.quiet:
            return
        now = time.monotonic()
        speed = self.rows_per_second()
        left = time_left((self.total - self.done) / speed if speed else 0.0)
        text = f"{self.done:,} of {self.total:,} rows · {speed:,.0f} rows/s · {left} left"
        if self._bar:
            self._bar.update(self._task, completed=self.done, text=text)
        elif now - self._last_line >= self.interval:
            self._last_line = now
            logger.info("predict %3.0f%% %s", 100 * self.done / max(self.total, 1), text)

    def rows_per_second(self) -> float:
        """Return the speed of this run; rows that an earlier run finished do not count."""
        return (self.done - self.first) / max(time.monotonic() - self.started, 1e-9)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar:
            self._bar.stop()
            self._bar = None
