"""`headstart pretrain|finetune`."""

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
    int, typer.Option(min=1, help="Machines that train together; run the command on each, with --rendezvous.")
]
Rendezvous = Annotated[str, typer.Option(help="HOST:PORT of one of the machines, where they meet.")]


def pretrain(
    recipe: Recipe,
    overrides: Overrides = None,
    quiet: Quiet = False,
    dry_run: DryRun = False,
    processes: Processes = 1,
    restarts: Restarts = 0,
    nodes: Nodes = 1,
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
    nodes: Nodes = 1,
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
    _launch(["finetune", recipe, *(overrides or [])], filled.output, quiet, processes, restarts, (nodes, rendezvous))
    from headstart.stages.finetune import run as stage

    run_and_show(stage.run, stage.summary, filled, quiet)


def _launch(
    arguments: list[str], output: Path, quiet: bool, processes: int, restarts: int, machines: tuple[int, str]
) -> None:
    """Run a command in several processes and exit with their code; return if this process is to run it itself."""
    nodes, rendezvous = machines
    if nodes > 1 and not re.fullmatch(r"\S+:\d+", rendezvous):
        raise RecipeError(
            f"--nodes is {nodes}, but --rendezvous is {rendezvous or 'empty'}",
            allowed="The machines meet at HOST:PORT of one of them, such as node1:29500",
            do="Pass the same --rendezvous on every machine",
        )
    if (processes > 1 or restarts or nodes > 1) and not is_finished(output) and "TORCHELASTIC_RUN_ID" not in os.environ:
        from headstart.stages.runs import launch

        words = [*arguments, *(["--quiet"] if quiet else [])]
        raise typer.Exit(launch.run(words, output, processes, restarts, nodes, rendezvous))


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command()(pretrain)
    app.command()(finetune)
