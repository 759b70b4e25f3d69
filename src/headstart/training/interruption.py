"""The wish that a run should stop: by Ctrl-C, by a signal of the system, or by a file in its folder."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

STOP_FILE = "stop"
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
_LOOKED_FOR_EVERY = 1.0
"""Seconds between two looks for the file: on a network's disk a look takes time."""
_SHOW_CURSOR = "\x1b[?25h"


class Stopped(KeyboardInterrupt):
    """A run was asked to stop and has saved itself; started again, it goes on from there."""


class StopSignal:
    """Listens for the wish to stop while a run is under way, and lets it finish what it is doing.

    A step changes weights, optimizer and counters one after the other; saved between two of them, a run could not be
    gone on with exactly. A second Ctrl-C ends the process at once: the last checkpoint is whole, whatever is written.
    Only the main thread receives signals; elsewhere the file alone counts.
    """

    def __init__(self, folder: Path | None) -> None:
        """Look for the file in a folder, or nowhere in a process that does not write there."""
        self.file = folder / STOP_FILE if folder else None
        self.came: str | None = None
        self._looked = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Take the signals; one that the process ignores stays ignored."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def asked(self) -> bool:
        """Say whether the run is to stop."""
        now = time.monotonic()
        if self.came is None and self.file is not None and now - self._looked >= _LOOKED_FOR_EVERY:
            self._looked = now
            if self.file.exists():
                self.came = f"the file {STOP_FILE}"
        return self.came is not None

    def obeyed(self) -> Stopped:
        """Take the file away, so that the next start goes on, and return what to raise."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)
        return Stopped(f"stopped by {self.came or 'another process'}")

    def _remember(self, number: int, _: FrameType | None) -> None:
        self.came = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            # A handler must not print: it may have come in the middle of a print. The bar has hidden the cursor.
            said = "stopping after this step; Ctrl-C again leaves at once\n"
            os.write(2, ((_SHOW_CURSOR + said) if sys.stderr.isatty() else said).encode())
