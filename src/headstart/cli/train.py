"""`headstart pretrain|finetune`."""

from __future__ import annotations

import os
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

Processes = Annotated[int, typer.Option(min=1, help="Data-parallel processes on this machine.")]
Restarts = Annotated[int, typer.Option(min=0, help="How often to restart after a process died.")]


def pretrain(
    recipe: Recipe,
    overrides: Overrides = None,
    quiet: Quiet = False,
    dry_run: DryRun = False,
    processes: Processes = 1,
    restarts: Restarts = 0,
) -> None:
    """Raw text → checkpoint. An unfinished run of the same recipe is resumed."""
    show_log(quiet)
    read = read_recipe(recipe)
    from headstart.stages.pretrain.recipe import PretrainRecipe

    filled = load_recipe(read, PretrainRecipe, overrides)
    if dry_run:
        show_recipe(filled)
        return
    _launch(["pretrain", recipe, *(overrides or [])], filled.output, quiet, processes, restarts)
    from headstart.stages.pretrain import run as stage

    run_and_show(stage.run, stage.summary, filled, quiet)


def finetune(
    recipe: Recipe,
    overrides: Overrides = None,
    quiet: Quiet = False,
    dry_run: DryRun = False,
    processes: Processes = 1,
    restarts: Restarts = 0,
) -> None:
    """Checkpoint × task × adaptation → model, compared with baselines. An unfinished run is resumed."""
    show_log(quiet)
    read = read_recipe(recipe)
    from headstart.stages.finetune.recipe import FinetuneRecipe

    filled = load_recipe(read, FinetuneRecipe, overrides)
    if dry_run:
        show_recipe(filled)
        return
    _launch(["finetune", recipe, *(overrides or [])], filled.output, quiet, processes, restarts)
    from headstart.stages.finetune import run as stage

    run_and_show(stage.run, stage.summary, filled, quiet)


def _launch(arguments: list[str], output: Path, quiet: bool, processes: int, restarts: int) -> None:
    """Run a command in several processes and exit with their code; return if this process is to run it itself."""
    if (processes > 1 or restarts) and not is_finished(output) and "TORCHELASTIC_RUN_ID" not in os.environ:
        from headstart.stages.runs import launch

        raise typer.Exit(launch.run([*arguments, *(["--quiet"] if quiet else [])], output, processes, restarts))


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command()(pretrain)
    app.command()(finetune)
