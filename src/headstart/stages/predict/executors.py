"""Where chunks are computed: in this process, in worker processes, or as tasks of a Ray cluster."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from headstart.core import ray_cluster
from headstart.core.errors import ResourceError, first_line
from headstart.core.extras import install_command
from headstart.core.processes import (
    Executor,
    WorkerProcess,
    answer_jobs,
    become_worker,
    clean_context,
    preload,
    wait_for_answers,
)
from headstart.stages.predict.compute import forget_model, run_job
from headstart.stages.predict.settings import PredictSettings

_TASKS_PER_CORE = 2
"""Tasks that are submitted to Ray for each of its cores, so that none waits for the next chunk."""


def build_executor(settings: PredictSettings, processes: int) -> Executor[int]:
    """Return the executor that the settings ask for."""
    if settings.on == "ray":
        return RayTasks(settings.address, settings.processes)
    return WorkerProcesses(processes) if processes > 1 else ThisProcess()


class ThisProcess:
    """Computes one chunk at a time in this process."""

    capacity = 1

    def __init__(self) -> None:
        """Start without a job."""
        self._jobs: dict[int, str] = {}

    def submit(self, key: int, job: str) -> None:
        """Keep a job until `wait` computes it."""
        self._jobs[key] = job

    def wait(self) -> list[tuple[int, str]]:
        """Compute the jobs."""
        answers = [(key, run_job(job)) for key, job in self._jobs.items()]
        self._jobs.clear()
        return answers

    def close(self) -> None:
        """Release the model."""
        forget_model()


class WorkerProcesses:
    """Worker processes on this machine, each with its own copy of the model and one job at a time."""

    def __init__(self, count: int) -> None:
        """Start the processes, from a server process that has imported the libraries once for all of them."""
        preload("headstart.stages.predict.compute")
        self.capacity, context = count, clean_context()
        self._idle = [WorkerProcess(context, _serve) for _ in range(count)]
        self._busy: dict[int, WorkerProcess] = {}

    def submit(self, key: int, job: str) -> None:
        """Give a job to an idle worker."""
        worker = self._idle.pop()
        self._busy[key] = worker
        try:
            worker.channel.send_bytes(job.encode())
        except OSError as error:
            raise _died(worker.exit_reason()) from error

    def wait(self) -> list[tuple[int, str]]:
        """Return the available answers; raises if a worker died."""
        answers = []
        for key in wait_for_answers(self._busy):
            worker = self._busy.pop(key)
            try:
                answers.append((key, worker.channel.recv_bytes().decode()))
            except (EOFError, OSError) as error:
                raise _died(worker.exit_reason()) from error
            self._idle.append(worker)
        return answers

    def close(self) -> None:
        """End the processes; a chunk that is not finished is computed again by the next run."""
        workers = [*self._idle, *self._busy.values()]
        for worker in workers:
            worker.channel.close()
            if worker.process.is_alive():
                worker.process.terminate()
        for worker in workers:
            worker.process.join()


class RayTasks:
    """Tasks of a Ray cluster, or of one that is started on this machine. All nodes read the model by the same path."""

    def __init__(self, address: str | None, processes: int | None) -> None:
        """Connect to the cluster, or start a local one."""
        if importlib.util.find_spec("ray") is None:
            raise ResourceError("--on ray needs Ray, which is not installed", do=install_command("study"))
        self._is_owner = "ray" not in sys.modules or not sys.modules["ray"].is_initialized()
        self._ray = ray_cluster.initialize(address, processes)
        self.capacity = _TASKS_PER_CORE * max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        # Ray itself runs the task of a lost node again.
        self._task = self._ray.remote(num_cpus=1)(run_job)
        self._pending: dict[Any, int] = {}

    def submit(self, key: int, job: str) -> None:
        """Start a task."""
        self._pending[self._task.remote(job)] = key

    def wait(self) -> list[tuple[int, str]]:
        """Return the answers of the finished tasks."""
        ready, _ = self._ray.wait(list(self._pending), num_returns=1)
        try:
            return [(self._pending.pop(task), self._ray.get(task)) for task in ready]
        except self._ray.exceptions.RayError as error:
            raise _died(first_line(error)) from error

    def close(self) -> None:
        """Cancel all pending tasks, and shut down a cluster that was started here."""
        for task in self._pending:
            self._ray.cancel(task)
        if self._is_owner:
            self._ray.shutdown()


def _serve(channel: Connection) -> None:
    """Compute chunks until the channel is closed."""
    become_worker()
    # Ctrl-C reaches the whole group of processes; the main process ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Every process has a core of its own.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    answer_jobs(channel, run_job)


def _died(reason: str) -> ResourceError:
    return ResourceError(
        f"a process that computed predictions died: {reason}",
        allowed="Each process holds the model in memory",
        do="Rerun the same command, which resumes, perhaps with fewer --processes",
    )
