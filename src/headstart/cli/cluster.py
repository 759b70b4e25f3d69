"""`headstart launch`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from headstart.cli.options import Overrides, Recipe, read_recipe, require_one_process, show

_COMMANDS = {
    "pretrain": ("pretrain",), "finetune": ("finetune",), "multitask": ("multitask",), "corpus": ("corpus", "build"),
    "index": ("index",),
    "study": ("study", "run"),
}  # fmt: skip
"""The words that run a recipe, by its verb."""


def launch(
    recipe: Recipe,
    overrides: Overrides = None,
    on: Annotated[str, typer.Option(help="slurm, kubernetes, skypilot or ray.")] = "slurm",
    nodes: Annotated[int, typer.Option(help="Machines that train together.")] = 1,
    processes: Annotated[
        int | None, typer.Option(help="Data-parallel processes on each machine; default: one per GPU.")
    ] = None,
    gpus: Annotated[int, typer.Option(help="GPUs of each machine.")] = 0,
    gpu_type: Annotated[str | None, typer.Option(help="The kind of GPU, such as A100.")] = None,
    cpus: Annotated[int | None, typer.Option(help="Cores of each machine.")] = None,
    memory_gb: Annotated[int | None, typer.Option(help="Memory of each machine in GB.")] = None,
    time: Annotated[str, typer.Option(help="For `slurm`: the time limit, after which the job is queued again.")] = (
        "24:00:00"
    ),
    partition: Annotated[str | None, typer.Option(help="For `slurm`: the partition.")] = None,
    account: Annotated[str | None, typer.Option(help="For `slurm`: the account.")] = None,
    image: Annotated[
        str | None, typer.Option(help="For `kubernetes` and `skypilot`: a container image with Headstart.")
    ] = None,
    volume: Annotated[
        str | None, typer.Option(help="For `kubernetes`: the persistent volume claim with data and output.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The name of the job; default: that of the recipe.")] = None,
    file: Annotated[Path | None, typer.Option(help="The file to write; default: NAME.sbatch, NAME.sky.yaml, …")] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Submit the job as well.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file with other content.")] = False,
) -> None:
    """Write the job of a recipe for a cluster: it saves when it is preempted, is queued again and resumes."""
    require_one_process("launch")
    path, parsed = read_recipe(recipe)
    from headstart import verbs
    from headstart.core import config
    from headstart.stages.launch import run as stage
    from headstart.stages.launch.job import Job
    from headstart.stages.launch.settings import LaunchSettings

    # The recipe is validated here, before the job waits in a queue.
    filled = verbs.load(recipe, overrides or [], parsed)
    settings = {
        "on": on, "nodes": nodes, "processes": processes or gpus or 1, "gpus": gpus, "gpu_type": gpu_type,
        "cpus": cpus, "memory_gb": memory_gb, "time": time, "partition": partition, "account": account,
        "image": image, "volume": volume, "name": name or _name_of(path),
    }  # fmt: skip
    job = Job(
        config.fill(LaunchSettings, settings, "launch"),
        ("headstart", *_COMMANDS[filled.verb], str(path), *(overrides or [])), path, Path.cwd(),
    )  # fmt: skip
    written = stage.write(job, file, overwrite)
    show(f"job: {written}")
    if submit:
        show(stage.submit(job, written))
    else:
        show(f"submit it with: {shlex.join(stage.submission(job, written))}")


def _name_of(recipe: Path) -> str:
    """Return the name of a job: folder and file of the recipe, as every scheduler accepts it."""
    words = re.sub(r"[^a-z0-9]+", "-", f"{recipe.resolve().parent.name}-{recipe.stem}".lower()).strip("-")
    return re.sub(r"^[^a-z]+", "", words)[-40:].strip("-") or "headstart"


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(launch)
