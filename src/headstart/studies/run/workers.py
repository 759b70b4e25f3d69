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
from multiprocessing.connection import Connection

from headstart.core.processes import (
    WorkerProcess,
    answer_jobs,
    become_worker,
    clean_context,
    preload,
    wait_for_answers,
)

_JOBS_MODULE = "headstart.studies.run.jobs"
_STOP_SECONDS = 300
"""How long cells may take to save after they are asked to stop."""


def died(reason: str) -> str:
    """Return the answer for a cell whose worker died."""
    return json.dumps({"ended": "failed", "reason": f"its worker died: {reason}", "again": True})


def warm_up() -> None:
    """Start the server process, which imports in the background what workers need."""
    preload(_JOBS_MODULE)
    if "forkserver" in multiprocessing.get_all_start_methods():
        forkserver.ensure_running()


class LocalWorkers:
    """A pool of worker processes, each with a number of CPU threads."""

    def __init__(self, count: int, threads: int) -> None:
        """Set the size of the pool; a worker process starts with its first job."""
        warm_up()
        self._context = clean_context()
        self.capacity, self._threads = count, threads
        self._idle: list[WorkerProcess] = []
        self._busy: dict[str, WorkerProcess] = {}

    def submit(self, key: str, job: str) -> None:
        """Give a job to an idle worker, or to a new one."""
        worker = self._idle.pop() if self._idle else self._start()
        try:
            worker.channel.send_bytes(job.encode())
        except OSError:  # It died while it was idle.
            worker = self._start()
            worker.channel.send_bytes(job.encode())
        self._busy[key] = worker

    def wait(self) -> list[tuple[str, str]]:
        """Return the available answers; the answer of a dead worker is how it died."""
        answers = []
        for key in wait_for_answers(self._busy):
            worker = self._busy.pop(key)
            try:
                answers.append((key, worker.channel.recv_bytes().decode()))
                self._idle.append(worker)
            except (EOFError, OSError):
                answers.append((key, died(worker.exit_reason())))
        return answers

    def _start(self) -> WorkerProcess:
        return WorkerProcess(self._context, _serve, self._threads)

    def close(self) -> None:
        """Ask busy workers to save and stop, and end the idle ones."""
        for worker in self._busy.values():
            if worker.process.pid and worker.process.is_alive():
                os.kill(worker.process.pid, signal.SIGTERM)
        _end([*self._idle, *self._busy.values()])


def _end(workers: Iterable[WorkerProcess]) -> None:
    for worker in workers:
        worker.channel.close()
    for worker in workers:
        worker.process.join(_STOP_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()


def _serve(channel: Connection, threads: int) -> None:
    """Run cells until the channel is closed."""
    become_worker()
    # Training saves itself when it is interrupted.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

    from headstart.studies.run.jobs import run_job

    answer_jobs(channel, run_job)
