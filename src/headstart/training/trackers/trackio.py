"""Trackio, configured by its own environment variables, such as TRACKIO_PROJECT, TRACKIO_DIR and TRACKIO_SPACE_ID."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

from headstart.training.trackers.base import PROJECT, Tracker, run_config, run_name

if TYPE_CHECKING:
    from headstart.training.loop import Loop


class TrackioCallback(Tracker):
    """Logs every entry to a Trackio run, which a resumed training continues."""

    package = "trackio"
    _run: Any = None

    def on_train_begin(self, loop: Loop) -> None:
        """Start a run, or resume the one of the same name."""
        name, resumed = self.run_id(loop, lambda: run_name(loop))
        with self._messages():
            self._run = self.api.init(
                project=os.environ.get("TRACKIO_PROJECT", PROJECT), name=name, config=run_config(loop),
                resume="allow" if resumed else "never", embed=False,
            )  # fmt: skip

    def on_log(self, loop: Loop, values: Mapping[str, float]) -> None:
        """Log the values."""
        self._run.log(dict(values), step=loop.progress.step)

    def close(self) -> None:
        """Write what is left and finish the run."""
        if self._run is not None:
            with self._messages():
                self.api.finish()
            self._run = None

    @contextmanager
    def _messages(self) -> Iterator[None]:
        """Send Trackio's messages to stderr, or nowhere if the run is quiet: stdout holds a command's result."""
        if not self.quiet:
            with redirect_stdout(sys.stderr):
                yield
            return
        with open(os.devnull, "w", encoding="utf-8") as null, redirect_stdout(null):
            yield
