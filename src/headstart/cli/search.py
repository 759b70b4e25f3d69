"""`headstart index|search`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from headstart.cli.options import (
    DryRun,
    Json,
    Quiet,
    Recipe,
    load_recipe,
    read_recipe,
    run_and_show,
    show,
    show_log,
    show_recipe,
)

Overrides = Annotated[list[str] | None, typer.Argument(help="Dotted overrides, e.g. passages.limit=1000.")]


def index(recipe: Recipe, overrides: Overrides = None, quiet: Quiet = False, dry_run: DryRun = False) -> None:
    """Raw text → an index of its passages for semantic search. An unfinished index is resumed."""
    show_log(quiet)
    read = read_recipe(recipe)
    from headstart.stages.search.recipe import IndexRecipe

    filled = load_recipe(read, IndexRecipe, overrides)
    if dry_run:
        show_recipe(filled)
        return
    # Imported here: torch and transformers take seconds, and a wrong recipe is refused without them.
    from headstart.stages.search import index as stage

    run_and_show(stage.run, stage.summary, filled, quiet)


def search(
    index: Annotated[Path, typer.Argument(help="The output folder of `headstart index`.")],
    questions: Annotated[list[str] | None, typer.Argument(help="Questions; read from stdin if there are none.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Passages per question.")] = 5,
    as_json: Json = False,
) -> None:
    """Show the passages of an index that answer a question best."""
    from headstart.stages.search import query as stage

    searcher = stage.Searcher(index)
    for question in questions or filter(str.strip, sys.stdin):
        answer = searcher.ask(question.strip(), count)
        show(json.dumps(answer, ensure_ascii=False) if as_json else stage.render(answer))
    typer.echo(f"opened in {searcher.seconds:.1f} s", err=True)


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command()(index)
    app.command()(search)
