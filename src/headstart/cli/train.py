"""`headstart pretrain|finetune`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from headstart.cli.options import (
    RANK,
    DryRun,
    Overrides,
    Quiet,
    Recipe,
    is_finished,
    note_finished,
    require_one_process,
    require_readable,
    run_and_show,
    show,
    show_log,
    show_recipe,
)


def pretrain(
    recipe: Recipe,
    overrides: Overrides = None,
    quiet: Quiet = False,
    dry_run: DryRun = False,
    processes: Annotated[int, typer.Option(min=1, help="Data-parallel processes on this machine.")] = 1,
    restarts: Annotated[int, typer.Option(min=0, help="How often to restart after a process died.")] = 0,
) -> None:
    """Raw text → checkpoint. An unfinished run of the same recipe is resumed."""
    show_log(quiet)
    require_readable(recipe)
    from headstart.core import config
    from headstart.stages.pretrain.recipe import PretrainRecipe

    filled = config.load(recipe, PretrainRecipe, overrides or [])
    if dry_run:
        show_recipe(filled)
        return
    before = is_finished(filled.output)
    if (processes > 1 or restarts) and not before and "TORCHELASTIC_RUN_ID" not in os.environ:
        from headstart.stages.runs import launch

        arguments = ["pretrain", recipe, *(overrides or []), *(["--quiet"] if quiet else [])]
        raise typer.Exit(launch.run(arguments, filled.output, processes, restarts))
    from headstart.stages.pretrain import run as stage

    folder = stage.run(filled, quiet)
    if RANK == 0:
        note_finished(before, folder)
        show(stage.summary(folder))


def finetune(recipe: Recipe, overrides: Overrides = None, quiet: Quiet = False, dry_run: DryRun = False) -> None:
    """Checkpoint × task × adaptation → model, compared with baselines. An unfinished run is resumed."""
    show_log(quiet)
    require_one_process("finetune")
    require_readable(recipe)
    from headstart.core import config
    from headstart.stages.finetune.recipe import FinetuneRecipe

    filled = config.load(recipe, FinetuneRecipe, overrides or [])
    if dry_run:
        show_recipe(filled)
        return
    from headstart.stages.finetune import run as stage

    run_and_show(stage.run, stage.summary, filled, quiet)


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command()(pretrain)
    app.command()(finetune)
