"""`headstart runs|show`: what was run, and what came of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headstart.cli.options import Json, show


def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look.")] = Path("runs"),
    as_tree: Annotated[bool, typer.Option("--tree", help="Show which run was made from which.")] = False,
    as_json: Json = False,
) -> None:
    """List every run below a folder with its state, score and cost."""
    from headstart.stages import lineage

    found = lineage.find_runs(folder)
    if as_json:
        show(json.dumps([run.to_dict() for run in found], indent=2, ensure_ascii=False))
    else:
        show(lineage.tree(found) if as_tree else lineage.table(found))


def show_run(run: Annotated[Path, typer.Argument(help="The output folder of a run.")]) -> None:
    """Print the card of a run: what it is, its scores and its cost."""
    from headstart.stages import lineage

    show(lineage.card(run))


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command()(runs)
    app.command("show")(show_run)
