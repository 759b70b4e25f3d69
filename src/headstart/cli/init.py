"""`headstart init`: from labeled rows to a recipe that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headstart.cli.options import Config, Split, show


def init(
    data: Annotated[
        Path, typer.Argument(help="A CSV, TSV, JSON or Parquet file, a folder of texts by label, or a data set.")
    ],
    text: Annotated[list[str] | None, typer.Option(help="The text column; twice for pairs of texts.")] = None,
    label: Annotated[str | None, typer.Option(help="The label column.")] = None,
    group: Annotated[str | None, typer.Option(help="Rows of one group stay in one split, such as a person.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The checkpoint to fine-tune: a folder, or a name on the Hub such as org/name.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Where to write; by default a folder named like the data.")
    ] = None,
    split: Split = None,
    config: Config = None,
) -> None:
    """Look at labeled rows and write a recipe that runs. Columns, task and settings are inferred from the data."""
    from headstart.stages.init import run as stage
    from headstart.tasks.table_files import rows_of

    show(stage.run(rows_of(data, split, config), stage.InitOptions(text or (), label, group, model, output)).summary())


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(init)
