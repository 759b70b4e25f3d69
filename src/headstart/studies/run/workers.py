"""Worker processes on this machine for the cells of a study: reused, monitored, and replaced when they die.

A server process that has imported everything and computed nothing forks them, so a worker starts at once and inherits
no lock or thread of the study's own process. Jobs and answers are lines of JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterable
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from headstart.core import log
from headstart.core.processes import clean_context, exit_with_parent, without_main

_JOBS_MODULE = "headstart.studies.run.jobs"
_STOP_SECONDS = 300
"""How long cells may take to save after they are asked to stop."""


class Executor(Protocol):
    """Runs jobs somewhere: worker processes, Ray, Slurm."""

    capacity: int
    """How many jobs may run at the same time."""

    def submit(self, key: str, job: str) -> None:
        """Start a job; `wait` returns its answer with this key."""
        ...

    def wait(self) -> list[tuple[str, str]]:
        """Return the available answers, after waiting for at least one."""
        ...

    def close(self) -> None:
        """Stop all running jobs and release the resources."""
        ...


def died(reason: str) -> str:
    """Return the answer for a cell whose worker died."""
    return json.dumps({"ended": "failed", "reason": f"its worker died: {reason}", "again": True})


def warm_up() -> None:
    """Start the server process, which imports in the background what workers need."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        forkserver.set_forkserver_preload([_JOBS_MODULE])
        forkserver.ensure_running()


class LocalWorkers:
    """A pool of worker processes, each with a number of CPU threads."""

    def __init__(self, count: int, threads: int) -> None:
        """Set the size of the pool; a worker process starts with its first job."""
        warm_up()
        self._context = clean_context()
        self.capacity, self._threads = count, threads
        self._idle: list[_Worker] = []
        self._busy: dict[str, _Worker] = {}

    def submit(self, key: str, job: str) -> None:
        """Give a job to an idle worker, or to a new one."""
        worker = self._idle.pop() if self._idle else _Worker(self._context, self._threads)
        try:
            worker.channel.send_bytes(job.encode())
        except OSError:  # It died while it was idle.
            worker = _Worker(self._context, self._threads)
            worker.channel.send_bytes(job.encode())
        self._busy[key] = worker

    def wait(self) -> list[tuple[str, str]]:
        """Return the available answers; the answer of a dead worker is how it died."""
        ready = set(wait([worker.channel for worker in self._busy.values()]))
        answers = []
        for key, worker in [(k, w) for k, w in self._busy.items() if w.channel in ready]:
            del self._busy[key]
            try:
                answers.append((key, worker.channel.recv_bytes().decode()))
                self._idle.append(worker)
            except (EOFError, OSError):
                answers.append((key, died(worker.exit_reason())))
        return answers

    def close(self) -> None:
        """Ask busy workers to save and stop, and end the idle ones."""
        for worker in self._busy.values():
            if worker.process.pid and worker.process.is_alive():
                os.kill(worker.process.pid, signal.SIGTERM)
        _end([*self._idle, *self._busy.values()])


class _Worker:
    """One process and the channel to it."""

    def __init__(self, context: Any, threads: int) -> None:
        self.channel, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, threads), daemon=True)
        with without_main():
            self.process.start()
        theirs.close()

    def exit_reason(self) -> str:
        """Return how the process ended: its exit code or the signal that killed it."""
        self.process.join(10)
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"exit code {code}"
        return f"signal {-code} ({signal.Signals(-code).name})"


def _end(workers: Iterable[_Worker]) -> None:
    for worker in workers:
        worker.channel.close()
    for worker in workers:
        worker.process.join(_STOP_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()


def _serve(channel: Connection, threads: int) -> None:
    """Run jobs until the channel is closed; the process ends with the one that started it, however that ends."""
    exit_with_parent()
    log.show(quiet=True)
    # Training saves itself when it is interrupted.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

    from headstart.studies.run.jobs import run_job

    try:
        while True:
            channel.send_bytes(run_job(channel.recv_bytes().decode()).encode())
    except (EOFError, OSError, KeyboardInterrupt):
        return
