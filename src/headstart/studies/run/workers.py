"""Worker processes on this machine for the cells of a study: started once, watched, replaced when they die.

They are forked by a server process that has imported everything and computed nothing, so that a worker starts at once
and no lock or thread of the study's own process is copied. Orders and answers are lines of JSON.
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

from headstart.core.processes import clean_context, die_with_parent, without_main

_CELLS = "headstart.studies.run.jobs"
_FAREWELL_SECONDS = 300
"""How long cells may take to save once they are asked to stop."""


class Executor(Protocol):
    """Someone who performs orders: worker processes, Ray, Slurm."""

    capacity: int
    """How many orders may be under way."""

    def submit(self, key: str, order: str) -> None:
        """Begin with an order; `key` comes back with its answer."""
        ...

    def wait(self) -> list[tuple[str, str]]:
        """Return the answers that have come, waiting for one at the least."""
        ...

    def close(self) -> None:
        """Stop whatever is still under way, and let go."""
        ...


def died(how: str) -> str:
    """Return the answer for a cell whose worker died on it."""
    return json.dumps({"ended": "failed", "reason": f"its worker died: {how}", "again": True})


def warm_up() -> None:
    """Start the server, which imports in the background what workers need."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        forkserver.set_forkserver_preload([_CELLS])
        forkserver.ensure_running()


class LocalWorkers:
    """So many worker processes, each with its share of the cores."""

    def __init__(self, count: int, threads: int) -> None:
        """Start none yet: a worker starts with its first order."""
        warm_up()
        self._context = clean_context()
        self.capacity, self._threads = count, threads
        self._idle: list[_Worker] = []
        self._busy: dict[str, _Worker] = {}

    def submit(self, key: str, order: str) -> None:
        """Give the order to an idle worker, or to a new one."""
        worker = self._idle.pop() if self._idle else _Worker(self._context, self._threads)
        try:
            worker.channel.send_bytes(order.encode())
        except OSError:  # It died while it had nothing to do.
            worker = _Worker(self._context, self._threads)
            worker.channel.send_bytes(order.encode())
        self._busy[key] = worker

    def wait(self) -> list[tuple[str, str]]:
        """Return the answers that have come; a worker that died answers by its death."""
        ready = set(wait([worker.channel for worker in self._busy.values()]))
        answers = []
        for key, worker in [(k, w) for k, w in self._busy.items() if w.channel in ready]:
            del self._busy[key]
            try:
                answers.append((key, worker.channel.recv_bytes().decode()))
                self._idle.append(worker)
            except (EOFError, OSError):
                answers.append((key, died(worker.death())))
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

    def death(self) -> str:
        """Say how the process ended."""
        self.process.join(10)
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"it left with code {code}"
        return f"signal {-code} ({signal.Signals(-code).name})"


def _end(workers: Iterable[_Worker]) -> None:
    for worker in workers:
        worker.channel.close()
    for worker in workers:
        worker.process.join(_FAREWELL_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()


def _serve(channel: Connection, threads: int) -> None:
    """Perform orders until the channel is closed; the process dies with the one that started it, by whatever death."""
    die_with_parent()
    # Asked to stop, training saves itself first.
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
