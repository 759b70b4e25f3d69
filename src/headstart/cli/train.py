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
    load_recipe,
    note_finished,
    read_recipe,
    require_one_process,
    run_and_show,
    show_log,
    show_recipe,
    show_summary,
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
    read = read_recipe(recipe)
    from headstart.stages.pretrain.recipe import PretrainRecipe

    filled = load_recipe(read, PretrainRecipe, overrides)
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
        show_summary(stage.summary(folder))


def finetune(recipe: Recipe, overrides: Overrides = None, quiet: Quiet = False, dry_run: DryRun = False) -> None:
    """Checkpoint × task × adaptation → model, compared with baselines. An unfinished run is resumed."""
    show_log(quiet)
    require_one_process("finetune")
    read = read_recipe(recipe)
    from headstart.stages.finetune.recipe import FinetuneRecipe

    filled = load_recipe(read, FinetuneRecipe, overrides)
    if dry_run:
        show_recipe(filled)
        return
    from headstart.stages.finetune import run as stage

    run_and_show(stage.run, stage.summary, filled, quiet)


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command()(pretrain)
    app.command()(finetune)
