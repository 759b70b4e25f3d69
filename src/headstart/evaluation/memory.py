"""Measure the peak memory of this process and its children between two points in time."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

import psutil

_SAMPLE_SECONDS = 0.5


class PeakMemory:
    """Samples resident memory from construction until `stop`.

    If the process reaches a new high in the meantime, the kernel's record gives its exact peak. Otherwise, and for
    children, the highest of two samples per second counts. Pages that processes share are counted in each.
    """

    def __init__(self) -> None:
        """Start sampling."""
        self._process = psutil.Process()
        self._record_before = _kernel_record()
        self._highest_sample = 0
        self._final: float | None = None
        self._stopped = threading.Event()
        self._sample()
        self._thread = threading.Thread(target=self._run, name="memory meter", daemon=True)
        self._thread.start()

    def megabytes(self) -> float:
        """Return the peak so far (after `stop`, until then) in millions of bytes."""
        if self._final is not None:
            return self._final
        self._sample()
        record = _kernel_record()
        return max(self._highest_sample, record if record > self._record_before else 0) / 1e6

    def stop(self) -> float:
        """Stop sampling and return the peak in millions of bytes."""
        self._final = self.megabytes()
        self._stopped.set()
        self._thread.join()
        return self._final

    def _run(self) -> None:
        while not self._stopped.wait(_SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        resident = self._process.memory_info().rss
        for child in self._process.children(recursive=True):
            try:
                resident += child.memory_info().rss
            except psutil.Error:
                continue  # the child ended after it was listed
        self._highest_sample = max(self._highest_sample, resident)


def _kernel_record() -> int:
    """Return the highest resident memory of this process so far in bytes, or 0 where the system does not record it.

    On Linux a child process inherits the value of getrusage, but not VmHWM.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return _record_of_usage()
    match = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(match[1]) * 1024 if match else _record_of_usage()


def _record_of_usage() -> int:
    try:
        import resource
    except ImportError:
        return 0
    record = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return record if sys.platform == "darwin" else record * 1024
