"""`headstart pretrain|finetune|multitask`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from headstart.cli.options import (
    DryRun,
    Overrides,
    Quiet,
    Recipe,
    is_finished,
    load_recipe,
    read_recipe,
    run_and_show,
    show_log,
    show_recipe,
)
from headstart.core.errors import RecipeError

Processes = Annotated[int, typer.Option(min=1, help="Data-parallel processes on this machine.")]
Restarts = Annotated[int, typer.Option(min=0, help="How often to restart after a process died.")]
Nodes = Annotated[
    str,
    typer.Option(
        metavar="N|MIN:MAX",
        help="Machines that train together; run the command on each, with --rendezvous. MIN:MAX continues when a "
        "machine is lost or joins.",
    ),
]
Rendezvous = Annotated[str, typer.Option(help="HOST:PORT of one of the machines, where they meet.")]


def pretrain(
    recipe: Recipe,
    overrides: Overrides = None,
    quiet: Quiet = False,
    dry_run: DryRun = False,
    processes: Processes = 1,
    restarts: Restarts = 0,
    nodes: Nodes = "1",
    rendezvous: Rendezvous = "",
) -> None:
    """Raw text → checkpoint. An unfinished run of the same recipe is resumed."""
    show_log(quiet)
    read = read_recipe(recipe)
    from headstart.stages.pretrain.recipe import PretrainRecipe

    filled = load_recipe(read, PretrainRecipe, overrides)
    if dry_run:
        show_recipe(filled)
        return
    filled.require_local_inputs()
    _launch(["pretrain", recipe, *(overrides or [])], filled.output, quiet, processes, restarts, (nodes, rendezvous))
    from headstart.stages.pretrain import run as stage

    run_and_show(stage.run, stage.summary, filled, quiet)


def finetune(
    recipe: Recipe,
    overrides: Overrides = None,
    quiet: Quiet = False,
    dry_run: DryRun = False,
    processes: Processes = 1,
    restarts: Restarts = 0,
    nodes: Nodes = "1",
    rendezvous: Rendezvous = "",
) -> None:
    """Checkpoint × task × adaptation → model, compared with baselines. An unfinished run is resumed."""
    show_log(quiet)
    read = read_recipe(recipe)
    from headstart.stages.finetune.recipe import FinetuneRecipe

    filled = load_recipe(read, FinetuneRecipe, overrides)
    if dry_run:
        show_recipe(filled)
        return
    filled.require_local_inputs()
    _launch(["finetune", recipe, *(overrides or [])], filled.output, quiet, processes, restarts, (nodes, rendezvous))
    from headstart.stages.finetune import run as stage

    run_and_show(stage.run, stage.summary, filled, quiet)


def multitask(
    recipe: Recipe,
    overrides: Overrides = None,
    quiet: Quiet = False,
    dry_run: DryRun = False,
    processes: Processes = 1,
    restarts: Restarts = 0,
    nodes: Nodes = "1",
    rendezvous: Rendezvous = "",
) -> None:
    """Checkpoint × several tasks → a model per task with one body, trained together. An unfinished run is resumed."""
    show_log(quiet)
    read = read_recipe(recipe)
    from headstart.stages.multitask.recipe import MultitaskRecipe

    filled = load_recipe(read, MultitaskRecipe, overrides)
    if dry_run:
        show_recipe(filled)
        return
    filled.require_local_inputs()
    _launch(["multitask", recipe, *(overrides or [])], filled.output, quiet, processes, restarts, (nodes, rendezvous))
    from headstart.stages.multitask import run as stage

    run_and_show(stage.run, stage.summary, filled, quiet)


def _launch(
    arguments: list[str], output: Path, quiet: bool, processes: int, restarts: int, machines: tuple[str, str]
) -> None:
    """Run a command in several processes and exit with their code; return if this process is to run it itself."""
    nodes, rendezvous = _range_of(machines[0]), machines[1]
    if nodes[1] > 1 and not re.fullmatch(r"\S+:\d+", rendezvous):
        raise RecipeError(
            f"--nodes is {machines[0]}, but --rendezvous is {rendezvous or 'empty'}",
            allowed="The machines meet at HOST:PORT of one of them, such as node1:29500",
            do="Pass the same --rendezvous on every machine",
        )
    if nodes[0] < nodes[1] and not restarts:
        raise RecipeError(
            f"--nodes is {machines[0]}, but --restarts is 0",
            allowed="A run that continues without a lost machine restarts the processes of the others",
            do="Pass --restarts, the number of losses to survive, or a fixed number of --nodes",
        )
    is_several = processes > 1 or restarts or nodes[1] > 1
    if is_several and not is_finished(output) and "TORCHELASTIC_RUN_ID" not in os.environ:
        from headstart.stages.runs import launch

        words = [*arguments, *(["--quiet"] if quiet else [])]
        raise typer.Exit(launch.run(words, output, processes, restarts, nodes, rendezvous))


def _range_of(nodes: str) -> tuple[int, int]:
    """Return the least and the largest number of machines."""
    if match := re.fullmatch(r"(\d+)(?::(\d+))?", nodes):
        least = int(match[1])
        most = int(match[2] or least)
        if 1 <= least <= most:
            return least, most
    raise RecipeError(
        f"--nodes is {nodes}",
        allowed="A number of machines, or the least and the largest number, such as 3:4",
        do="Pass --nodes 4, or --nodes 3:4",
    )


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command()(pretrain)
    app.command()(finetune)
    app.command()(multitask)
