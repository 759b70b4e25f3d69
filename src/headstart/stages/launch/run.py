"""Write the file of a job, and submit it where the scheduler's own command exists."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headstart.core import artifact
from headstart.core.errors import ArtifactError, RecipeError, ResourceError
from headstart.stages.launch import kubernetes, on_ray, skypilot, slurm
from headstart.stages.launch.job import Job

_TRAINS = ("pretrain", "finetune", "multitask")


@dataclass(frozen=True)
class _Scheduler:
    suffix: str
    """The end of the file's name."""
    submit: tuple[str, ...]
    """The command that submits the file, whose path follows."""
    tool: str
    """The program that must be installed for that."""
    render: Callable[[Job], str]


_SCHEDULERS = {
    "slurm": _Scheduler(".sbatch", ("sbatch",), "sbatch", slurm.script),
    "kubernetes": _Scheduler(".kubernetes.yaml", ("kubectl", "apply", "-f"), "kubectl", kubernetes.manifests),
    "skypilot": _Scheduler(".sky.yaml", ("sky", "jobs", "launch", "--yes", "--detach-run"), "sky", skypilot.task),
    "ray": _Scheduler(".ray.sh", ("bash",), "ray", on_ray.script),
}


def write(job: Job, path: Path | None = None, overwrite: bool = False) -> Path:
    """Write the file of a job and return its path; by default it is in the working directory, named as the job."""
    _require_possible(job)
    scheduler = _SCHEDULERS[job.settings.on]
    path = path or job.folder / f"{job.settings.name}{scheduler.suffix}"
    text = scheduler.render(job)
    if path.exists() and not overwrite and path.read_text(encoding="utf-8") != text:
        raise ArtifactError(
            f"{path} exists already with other content", do="Pass --overwrite, or choose another --file"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    artifact.write_whole(path, text)
    return path


def submission(job: Job, path: Path) -> list[str]:
    """Return the command that submits the file of a job."""
    return [*_SCHEDULERS[job.settings.on].submit, str(path)]


def submit(job: Job, path: Path) -> str:
    """Submit the file of a job and return what the scheduler answered."""
    command = submission(job, path)
    tool = _SCHEDULERS[job.settings.on].tool
    if shutil.which(tool) is None:
        raise ResourceError(
            f"`{tool}` is not installed on this machine, so the job cannot be submitted from here",
            do=f"Run `{shlex.join(command)}` where it is",
        )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip()
        raise ResourceError(f"`{shlex.join(command)}` ended with code {done.returncode}: {lines}")
    return done.stdout.strip()


def _require_possible(job: Job) -> None:
    """Raise if several processes are asked for, but the verb runs in one."""
    settings, verb = job.settings, job.command[1]
    if (settings.nodes > 1 or settings.processes > 1) and verb not in _TRAINS:
        raise RecipeError(
            f"{settings.nodes} x {settings.processes} processes are asked for, but the recipe belongs to "
            f"`headstart {verb}`",
            allowed="Only pretrain, finetune and multitask run in several processes that train together",
            do="Leave out --nodes and --processes" + (", and set `execution` in the study" if verb == "study" else ""),
        )
