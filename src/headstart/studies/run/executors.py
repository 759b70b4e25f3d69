"""Where the cells of a study run: worker processes on this machine, a Ray cluster, or Slurm through submitit."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from headstart.core import ray_cluster
from headstart.core.errors import ResourceError, first_line
from headstart.core.extras import install_command
from headstart.core.processes import Executor, cores
from headstart.studies.definition import Execution
from headstart.studies.run.jobs import run_job
from headstart.studies.run.workers import LocalWorkers, died

_JOBS_FOLDER = "jobs"
_POLL_SECONDS = 0.5
_SLURM_JOBS = 100
"""How many jobs are submitted to Slurm at the same time, unless `workers` is set."""


def build_executor(execution: Execution, output: Path, todo: int) -> Executor[str]:
    """Return the executor for `todo` cells; no more local workers start than there are cells."""
    if execution.on == "ray":
        return RayTasks(execution)
    if execution.on == "slurm":
        return SlurmJobs(execution, output)
    return LocalWorkers(max(1, min(local_workers(execution), todo)), execution.threads)


def local_workers(execution: Execution) -> int:
    """Return the number of worker processes on this machine: `workers`, or as many as the cores allow."""
    return execution.workers or max(1, cores() // execution.threads)


class RayTasks:
    """Runs cells as Ray tasks, on an existing cluster or a local one; all machines share one file system."""

    def __init__(self, execution: Execution) -> None:
        """Connect to the cluster, or start a local one."""
        # Not imported here: Ray reads some settings when it is imported.
        _require("ray")
        self._is_owner = "ray" not in sys.modules or not sys.modules["ray"].is_initialized()
        self._ray = ray_cluster.initialize(execution.address, (execution.workers or 0) * execution.threads or None)
        slots = int(self._ray.cluster_resources().get("CPU", 1)) // execution.threads
        self.capacity = max(1, min(slots, execution.workers or slots))
        # The engine counts attempts itself, including those that a lost node ended.
        self._task = self._ray.remote(num_cpus=execution.threads, max_retries=0)(run_job)
        self._pending: dict[Any, str] = {}

    def submit(self, key: str, job: str) -> None:
        """Start a task."""
        self._pending[self._task.remote(job)] = key

    def wait(self) -> list[tuple[str, str]]:
        """Return the available answers; the answer of a lost worker or node is the error."""
        ready, _ = self._ray.wait(list(self._pending), num_returns=1)
        more, _ = self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
        answers = []
        for task in dict.fromkeys([*ready, *more]):
            key = self._pending.pop(task)
            try:
                answers.append((key, self._ray.get(task)))
            except self._ray.exceptions.RayError as error:
                answers.append((key, died(first_line(error))))
        return answers

    def close(self) -> None:
        """Cancel all pending tasks, and shut down a cluster that was started here."""
        for task in self._pending:
            self._ray.cancel(task)
        if self._is_owner:
            self._ray.shutdown()


class SlurmJobs:
    """Runs each cell as a Slurm job through submitit; its `local` cluster runs them as processes on this machine."""

    def __init__(self, execution: Execution, output: Path) -> None:
        """Set up submitit and the folder through which it exchanges files with its jobs."""
        _require("submitit")
        submitit = importlib.import_module("submitit")
        settings = dict(execution.slurm)
        self._folder = output / _JOBS_FOLDER
        self._executor = submitit.AutoExecutor(folder=str(self._folder), cluster=settings.pop("cluster", None))
        self._executor.update_parameters(**{"cpus_per_task": execution.threads, "timeout_min": 24 * 60, **settings})
        self.capacity = execution.workers or _SLURM_JOBS
        self._pending: dict[str, Any] = {}

    def submit(self, key: str, job: str) -> None:
        """Submit a job."""
        self._pending[key] = self._executor.submit(run_job, job)

    def wait(self) -> list[tuple[str, str]]:
        """Poll until jobs have ended, successfully or not, and return their answers."""
        while not (ended := [key for key, job in self._pending.items() if job.done()]):
            time.sleep(_POLL_SECONDS)
        answers = []
        for key in ended:
            try:
                answers.append((key, self._pending.pop(key).result()))
            except Exception as error:
                answers.append((key, died(first_line(error))))
        return answers

    def close(self) -> None:
        """Cancel all pending jobs and remove submitit's files."""
        for job in self._pending.values():
            job.cancel(check=False)
        shutil.rmtree(self._folder, ignore_errors=True)


def _require(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        raise ResourceError(
            f"execution.on needs {name}, which is not installed",
            allowed="Without it, a study runs in local worker processes",
            do=f"{install_command('study')}, or set execution.on=local",
        )
