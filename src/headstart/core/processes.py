"""Worker processes: started without the main module of the program, given jobs over a pipe, and never orphans."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any, Protocol, TypeVar

from headstart.core import log

LOOPBACK = "127.0.0.1"
_PR_SET_PDEATHSIG = 1
"""A constant of <linux/prctl.h>."""
_POLL_SECONDS = 0.5
KeyT = TypeVar("KeyT")


class Executor(Protocol[KeyT]):
    """Runs jobs somewhere: in worker processes, on Ray, on Slurm. The order of the answers does not matter."""

    capacity: int
    """How many jobs may be submitted before `wait` is called."""

    def submit(self, key: KeyT, job: str) -> None:
        """Start a job; `wait` returns its answer with this key."""
        ...

    def wait(self) -> list[tuple[KeyT, str]]:
        """Return the available answers, after waiting for at least one."""
        ...

    def close(self) -> None:
        """End all running jobs and release the resources."""
        ...


class WorkerProcess:
    """A process that answers one job at a time, and the channel to it."""

    def __init__(self, context: BaseContext, serve: Callable[..., None], *arguments: Any) -> None:
        """Start a process that calls `serve` with its end of the channel and the arguments."""
        self.channel, theirs = context.Pipe()
        # The type of contexts lacks the class of their processes.
        make: Any = context
        self.process: BaseProcess = make.Process(target=serve, args=(theirs, *arguments), daemon=True)
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


def wait_for_answers(busy: Mapping[KeyT, WorkerProcess]) -> list[KeyT]:
    """Return the keys of the workers that have answered or died, after waiting for at least one."""
    ready = set(wait([worker.channel for worker in busy.values()]))
    return [key for key, worker in busy.items() if worker.channel in ready]


def answer_jobs(channel: Connection, run_job: Callable[[str], str]) -> None:
    """Answer jobs in this process until the channel is closed or an interrupt ends it."""
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            channel.send_bytes(run_job(channel.recv_bytes().decode()).encode())


def become_worker() -> None:
    """Prepare this process to serve another one: it ends with that one, however that ends, and logs nothing."""
    exit_with_parent()
    log.show(quiet=True)


def preload(module: str) -> None:
    """Let the server process, which forks the workers of `clean_context`, import a module once for all of them."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        forkserver.set_forkserver_preload([module])


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def clean_context() -> BaseContext:
    """Return a multiprocessing context whose processes inherit no lock or thread of this one."""
    methods = multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")


@contextmanager
def without_main() -> Iterator[None]:
    """Hide the main module of the program, so that a worker does not run the user's script again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def exit_with_parent() -> None:
    """End this process as soon as its parent ends, for any reason."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent,), daemon=True).start()


def die_with_parent(parent: int) -> None:
    """Kill this process as soon as its parent, the process with the given id, ends for any reason.

    Unlike `exit_with_parent` it works for a process that was not started by multiprocessing, and on Linux even while
    this process runs no Python code, for example in a collective that waits for another process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_poll_parent, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # It ended before the kernel was asked.
        os._exit(1)


def loopback_interface() -> str | None:
    """Return the name of the network interface that only this machine can reach, or None if it is unknown."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), None)


def _poll_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)


def _exit_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
