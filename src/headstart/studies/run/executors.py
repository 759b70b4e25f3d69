"""Where the cells of a study are computed: worker processes here, a Ray cluster, or Slurm through submitit."""

from __future__ import annotations

import importlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

from headstart.core.errors import ResourceError, first_line
from headstart.core.processes import cores
from headstart.studies.definition import Execution
from headstart.studies.run.jobs import run_job
from headstart.studies.run.workers import Executor, LocalWorkers, died

_JOBS = "jobs"
_LOOK_SECONDS = 0.5
_AT_A_TIME_ON_SLURM = 100


def executor_of(execution: Execution, output: Path, todo: int) -> Executor:
    """Return who computes, with the cores shared out among as many cells as there are to do."""
    if execution.on == "ray":
        return RayTasks(execution)
    if execution.on == "slurm":
        return SlurmJobs(execution, output)
    return LocalWorkers(max(1, min(local_workers(execution), todo)), execution.threads)


def local_workers(execution: Execution) -> int:
    """Return how many worker processes run here: as many as asked for, or as the cores allow."""
    return execution.workers or max(1, cores() // execution.threads)


class RayTasks:
    """Cells as tasks of Ray, on a cluster that is there or on one that is started here; all see one file system."""

    def __init__(self, execution: Execution) -> None:
        """Join the cluster."""
        # Ray lets its workers yield to everything else (niceness 15); a cluster of our own has nothing else to do.
        os.environ.setdefault("RAY_worker_niceness", "0")
        self._ray = _library("ray")
        self._own = not self._ray.is_initialized()
        if self._own and execution.address:
            self._ray.init(address=execution.address, log_to_driver=False)
        elif self._own:
            asked = (execution.workers or 0) * execution.threads or None
            self._ray.init(num_cpus=asked, include_dashboard=False, log_to_driver=False)
        there = int(self._ray.cluster_resources().get("CPU", 1)) // execution.threads
        self.capacity = max(1, min(there, execution.workers or there))
        # The engine counts attempts itself, and a lost node is one.
        self._task = self._ray.remote(num_cpus=execution.threads, max_retries=0)(run_job)
        self._under_way: dict[Any, str] = {}

    def submit(self, key: str, order: str) -> None:
        """Begin a task."""
        self._under_way[self._task.remote(order)] = key

    def wait(self) -> list[tuple[str, str]]:
        """Return the answers that have come; a worker or node that was lost answers by its loss."""
        ready, _ = self._ray.wait(list(self._under_way), num_returns=1)
        more, _ = self._ray.wait(list(self._under_way), num_returns=len(self._under_way), timeout=0)
        answers = []
        for task in dict.fromkeys([*ready, *more]):
            key = self._under_way.pop(task)
            try:
                answers.append((key, self._ray.get(task)))
            except self._ray.exceptions.RayError as error:
                answers.append((key, died(first_line(error))))
        return answers

    def close(self) -> None:
        """Cancel what is under way, and leave a cluster that was started here."""
        for task in self._under_way:
            self._ray.cancel(task)
        if self._own:
            self._ray.shutdown()


class SlurmJobs:
    """Each cell as a job of Slurm's, sent and watched by submitit; its `local` cluster runs them as processes here."""

    def __init__(self, execution: Execution, output: Path) -> None:
        """Prepare the folder through which submitit talks to its jobs."""
        submitit = _library("submitit")
        settings = dict(execution.slurm)
        self._folder = output / _JOBS
        self._sender = submitit.AutoExecutor(folder=str(self._folder), cluster=settings.pop("cluster", None))
        self._sender.update_parameters(**{"cpus_per_task": execution.threads, "timeout_min": 24 * 60, **settings})
        self.capacity = execution.workers or _AT_A_TIME_ON_SLURM
        self._jobs: dict[str, Any] = {}

    def submit(self, key: str, order: str) -> None:
        """Send a job."""
        self._jobs[key] = self._sender.submit(run_job, order)

    def wait(self) -> list[tuple[str, str]]:
        """Look for jobs that have ended, however they did."""
        while not (ended := [key for key, job in self._jobs.items() if job.done()]):
            time.sleep(_LOOK_SECONDS)
        answers = []
        for key in ended:
            try:
                answers.append((key, self._jobs.pop(key).result()))
            except Exception as error:
                answers.append((key, died(first_line(error))))
        return answers

    def close(self) -> None:
        """Cancel what is under way; what submitit wrote for its jobs is of no use afterwards."""
        for job in self._jobs.values():
            job.cancel(check=False)
        shutil.rmtree(self._folder, ignore_errors=True)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ResourceError(
            f"execution.on asks for {name}, which is not installed",
            allowed="A study runs in local worker processes without it",
            do="pip install 'headstart[study]', or set execution.on=local",
        ) from error
