"""The parent of the worker processes: it holds the listening socket and replaces workers that die.

Algorithm:
    Each worker inherits the listening socket and accepts connections from it, so the kernel spreads them. A socket pair
    connects the parent with each worker. The worker reports over it that it listens, then sends a line every second.
    A worker that ends, or is silent for `worker_timeout_seconds`, is replaced; one that dies again soon after its start
    is replaced after a delay that doubles each time.

Properties:
    The parent imports neither torch nor the application, so that nothing that a request does can end it. Connections
    that no worker has accepted yet wait in the socket and survive the death of a worker. Workers stop when the parent
    dies, because their end of the socket pair is closed.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from headstart.core.errors import HeadstartError, ResourceError, error_from_dict
from headstart.core.log import logger
from headstart.core.processes import cores
from headstart.stages.serve.settings import ServeSettings

_TICK_SECONDS = 0.2
_STEADY_SECONDS = 30.0
"""A worker that lived this long starts again without a growing delay."""
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0
_GRACE_SECONDS = 10.0
"""Time beyond `drain_seconds` after which a worker that does not stop is killed."""
_WORKER = "headstart.stages.serve.workers.worker"


class Worker:
    """One of the workers: its current process, or the time at which the next one starts."""

    def __init__(self, index: int) -> None:
        """Start with no process."""
        self.index = index
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: socket.socket | None = None
        self.is_listening = False
        self.error: HeadstartError | None = None
        """What the process reported before it ended."""
        self.early_deaths = 0
        """Deaths in succession, each less than 30 s after the start."""
        self.restart_at = 0.0
        self._started = self._heard = 0.0
        self._partial = b""

    def start(self, listener: socket.socket, job: dict[str, Any], environment: dict[str, str]) -> None:
        """Start a process that accepts connections from the listener."""
        self.channel, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", _WORKER, str(listener.fileno()), str(theirs.fileno())]
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, env=environment, pass_fds=(listener.fileno(), theirs.fileno())
            )
        with suppress(OSError):  # A process that died at once is noticed like any other.
            self.channel.sendall(json.dumps({**job, "index": self.index}).encode() + b"\n")
        self.channel.setblocking(False)
        self.is_listening, self.error, self._partial = False, None, b""
        self._started = self._heard = time.monotonic()

    def read(self) -> None:
        """Take what the process has sent."""
        assert self.channel is not None, "only workers with a process are read"
        with suppress(BlockingIOError, ConnectionError):
            while received := self.channel.recv(65_536):
                self._heard = time.monotonic()
                *lines, self._partial = (self._partial + received).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    self.is_listening |= message["state"] == "listening"
                    if message["state"] == "failed":
                        self.error = error_from_dict(message["error"])

    def silent_seconds(self) -> float:
        """Return the time since the last sign of life; 0 while the process loads its tasks."""
        return time.monotonic() - self._heard if self.is_listening else 0.0

    @property
    def has_ended(self) -> bool:
        """True if the process ended and was not forgotten yet."""
        return self.process is not None and self.process.poll() is not None

    def forget(self) -> str:
        """Forget a process that has ended, set the time of the next start, and return how it ended."""
        assert self.process is not None and self.channel is not None, "only a process that ran can have ended"
        code = self.process.returncode
        self.read()
        self.channel.close()
        self.process = self.channel = None
        self.is_listening = False
        lived = time.monotonic() - self._started
        self.early_deaths = self.early_deaths + 1 if lived < _STEADY_SECONDS else 1
        delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** (self.early_deaths - 1))
        self.restart_at = time.monotonic() + delay
        return f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"

    def signal(self, number: int) -> None:
        """Send a signal to the process, if there is one."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


class Supervisor:
    """Starts the workers, replaces those that die, and stops them all on SIGTERM or SIGINT."""

    def __init__(
        self,
        listener: socket.socket,
        folders: Sequence[Path],
        indexes: Sequence[Path],
        settings: ServeSettings,
        key: str | None,
        metrics: str,
    ) -> None:
        """Keep what every worker needs.

        Args:
            listener: the bound socket.
            folders: the folders of the tasks.
            indexes: the folders of the search indexes.
            settings: the settings of the server.
            key: what a client must send.
            metrics: a folder in which the processes share their metrics.
        """
        self.listener, self.settings = listener, settings
        self.workers = [Worker(index) for index in range(settings.workers)]
        self._job = {
            "folders": [str(folder) for folder in folders], "indexes": [str(folder) for folder in indexes],
            "settings": settings.model_dump(), "key": key, "metrics": metrics, "level": logger.getEffectiveLevel(),
        }  # fmt: skip
        self._environment = dict(os.environ)
        if settings.workers > 1:
            # Each worker would otherwise use all cores, and they would take them from each other.
            self._environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // settings.workers)))
        self._selector = selectors.DefaultSelector()
        self._stopping = False
        self._announced = False
        from headstart.stages.serve.telemetry import SupervisorTelemetry

        self._telemetry = SupervisorTelemetry(metrics)

    def run(self) -> None:
        """Supervise the workers until a signal; returns after the last one has stopped.

        Raises:
            HeadstartError: a worker ended during the first start, with the error that it reported.
        """
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while not self._stopping:
                self._start_due()
                self._read()
                self._replace_dead()
            self._drain()
        finally:
            for worker in self.workers:
                worker.signal(signal.SIGKILL)
                if worker.process is not None:
                    worker.process.wait()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _start_due(self) -> None:
        for worker in self.workers:
            if worker.process is None and time.monotonic() >= worker.restart_at:
                worker.start(self.listener, self._job, self._environment)
                assert worker.channel is not None, "a started worker has a channel"
                self._selector.register(worker.channel, selectors.EVENT_READ, worker)

    def _read(self) -> None:
        for key, _ in self._selector.select(_TICK_SECONDS):
            key.data.read()
        if not self._announced and any(worker.is_listening for worker in self.workers):
            self._announced = True
            logger.info("listening on http://%s:%d", *self.listener.getsockname()[:2])
        self._telemetry.alive(sum(worker.is_listening for worker in self.workers))

    def _replace_dead(self) -> None:
        for worker in self.workers:
            if worker.silent_seconds() > self.settings.worker_timeout_seconds:
                logger.warning("worker %d did not respond for %.0f s and is killed", worker.index,
                               worker.silent_seconds())  # fmt: skip
                worker.signal(signal.SIGKILL)
            if not worker.has_ended or self._stopping:
                continue
            assert worker.channel is not None, "a process that ended has a channel until it is forgotten"
            self._selector.unregister(worker.channel)
            reason = worker.forget()
            if not self._announced:
                raise worker.error or ResourceError(
                    f"a worker ended before it could listen ({reason})",
                    do="See the lines above; a killed process often means that memory is short",
                )
            self._telemetry.restarted(worker.index)
            delay = max(0.0, worker.restart_at - time.monotonic())
            logger.warning("worker %d ended (%s) and is restarted in %.1f s; its clients must retry%s", worker.index,
                           reason, delay, f": {worker.error}" if worker.error else "")  # fmt: skip

    def _drain(self) -> None:
        """Stop accepting connections and let the workers answer what they accepted."""
        self.listener.close()
        for worker in self.workers:
            worker.signal(signal.SIGTERM)
        end = time.monotonic() + self.settings.drain_seconds + _GRACE_SECONDS
        for worker in self.workers:
            if worker.process is not None:
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(0.0, end - time.monotonic()))
                if worker.process.poll() is None:
                    logger.warning("worker %d did not stop and is killed", worker.index)


def run(
    listener: socket.socket,
    folders: Sequence[Path],
    indexes: Sequence[Path],
    settings: ServeSettings,
    key: str | None,
) -> None:
    """Serve with worker processes until SIGTERM or SIGINT."""
    with tempfile.TemporaryDirectory(prefix="headstart-metrics-") as metrics:
        Supervisor(listener, folders, indexes, settings, key, metrics).run()
