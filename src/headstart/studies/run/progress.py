"""How far a study is: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from headstart.studies.graph import Node
from headstart.studies.run.engine import RunSummary

_LINE_SECONDS = 10.0


class ProgressReporter:
    """Tells what becomes of each cell, on stderr."""

    def __init__(self, total: int, finished: int, quiet: bool) -> None:
        """Know how many there are and how many were there before."""
        self.quiet, self.total, self.finished = quiet, total, finished
        self._said = time.monotonic()
        self._bar: Progress | None = None
        console = Console(stderr=True)
        if console.is_terminal and not quiet:
            columns = (TextColumn("cells"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, TimeRemainingColumn(), console=console)

    def __enter__(self) -> Self:
        """Show the bar."""
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("cells", total=self.total, completed=self.finished)
        elif not self.quiet:
            self._say(f"study: {self.finished:,} of {self.total:,} cells are there")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, tally: RunSummary, node: Node, what: str) -> None:
        """Tell of one cell; what failed is told at once, what went well now and then."""
        if self.quiet:
            return
        if what != "finished":
            self._say(f"study: {node.id} {what}")
        if self._bar is not None:
            self._bar.update(self._task, completed=tally.finished)
        elif time.monotonic() - self._said >= _LINE_SECONDS or tally.finished == tally.total:
            self._said = time.monotonic()
            self._say(f"study: {tally.finished:,} of {tally.total:,} cells, the last one {node.id}")

    def _say(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, markup=False, emoji=False)
        else:
            print(line, file=sys.stderr, flush=True)
