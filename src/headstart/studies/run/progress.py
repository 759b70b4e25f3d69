"""Report the progress of a study: a bar in a terminal, log lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from headstart.core.log import logger
from headstart.studies.graph import Node
from headstart.studies.run.engine import RunSummary

_LOG_SECONDS = 10.0


class ProgressReporter:
    """Reports what happens to each cell: failures at once, finished cells every few seconds."""

    def __init__(self, total: int, finished: int, quiet: bool) -> None:
        """Set the number of cells, and how many of them were finished before."""
        self.quiet, self.total, self.finished = quiet, total, finished
        self._last_logged = time.monotonic()
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
        else:
            self._log(f"study: {self.finished:,} of {self.total:,} cells are finished")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, summary: RunSummary, node: Node, event: str) -> None:
        """Report what happened to one cell."""
        if event != "finished":
            self._log(f"study: {node.id} {event}")
        if self._bar is not None:
            self._bar.update(self._task, completed=summary.finished)
        elif time.monotonic() - self._last_logged >= _LOG_SECONDS or summary.finished == summary.total:
            self._last_logged = time.monotonic()
            self._log(f"study: {summary.finished:,} of {summary.total:,} cells, the last one {node.id}")

    def _log(self, line: str) -> None:
        if self.quiet:
            return
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, markup=False, emoji=False)
        else:
            logger.info(line)
