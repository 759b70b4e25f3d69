"""Requests to stop a run: Ctrl-C, a signal from the system, or a file in the run's folder."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from headstart.core.errors import HeadstartError

STOP_FILE = "stop"
ELASTIC = "HEADSTART_ELASTIC"
"""Set for processes of a run whose number of machines may change. When a machine joins, the launcher of each machine
signals its own processes, at slightly different times, and starts them again."""
_SIGNAL_SECONDS = 30.0
"""How long a process waits for the signal of its own launcher after that of another machine."""
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
_POLL_SECONDS = 1.0
"""Minimum time between two checks for the file: a check is slow on a network disk."""
_FILE_REASON = f"the file {STOP_FILE}"
_SHOW_CURSOR = "\x1b[?25h"


class Stopped(KeyboardInterrupt):
    """A run was asked to stop and has saved a checkpoint; the same command resumes it."""


class MachineLeftError(HeadstartError):
    """Another machine was asked to leave the run; the launcher starts this process again, without that machine."""


class StopSignal:
    """Records requests to stop while a run trains, so that the run can finish its step and save.

    A step changes weights, optimizer state and counters one after the other. A checkpoint taken in between could not be
    resumed exactly. A second Ctrl-C ends the process at once; the last checkpoint stays complete. Only the main thread
    receives signals. In other threads only the file is checked.
    """

    def __init__(self, folder: Path | None) -> None:
        """Check for the stop file in `folder`; None on ranks that do not write there."""
        self.file = folder / STOP_FILE if folder else None
        self.reason: str | None = None
        self._last_check = 0.0
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Install signal handlers; a signal that the process ignores stays ignored."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers[number] = signal.signal(number, self._record)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def requested(self) -> bool:
        """Return True once a signal has arrived or the stop file exists."""
        now = time.monotonic()
        if self.reason is None and self.file is not None and now - self._last_check >= _POLL_SECONDS:
            self._last_check = now
            if self.file.exists():
                self.reason = _FILE_REASON
        return self.reason is not None

    def acknowledge(self, reasons: Sequence[str | None] = ()) -> Stopped:
        """Delete the stop file, so that the next start resumes, and return the exception to raise.

        `reasons` are those of all processes. If the number of machines may change, wait for a signal of this process's
        own launcher: a process that exits without one has finished, as its launcher sees it.

        Raises:
            MachineLeftError: only another machine was asked to stop.
        """
        if self.file is not None:
            self.file.unlink(missing_ok=True)
        reason = next(filter(None, [*reasons, self.reason]), "another process")
        if ELASTIC in os.environ and self.reason is None and not reason.startswith(_FILE_REASON):
            deadline = time.monotonic() + _SIGNAL_SECONDS
            while self.reason is None:
                if time.monotonic() > deadline:
                    raise MachineLeftError(
                        "another machine was asked to stop and has left",
                        allowed="All processes have saved a checkpoint",
                        do="Do nothing: the run resumes with the machines that are left",
                    )
                time.sleep(0.05)
        return Stopped(f"stopped by {reason}")

    def _record(self, number: int, _: FrameType | None) -> None:
        self.reason = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            # os.write, because a handler may interrupt a print. The progress bar has hidden the cursor.
            message = "stopping after this step; press Ctrl-C again to exit at once\n"
            os.write(2, ((_SHOW_CURSOR + message) if sys.stderr.isatty() else message).encode())
