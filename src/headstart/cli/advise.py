"""`headstart advise`: which method for these labels?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headstart.cli.options import Quiet, require_models, require_one_process, show_log, show_summary


def advise(
    data: Annotated[Path, typer.Argument(help="A CSV, TSV, JSON or Parquet file, or a folder of texts by label.")],
    text: Annotated[list[str] | None, typer.Option(help="The text column; twice for pairs of texts.")] = None,
    label: Annotated[str | None, typer.Option(help="The label column.")] = None,
    group: Annotated[str | None, typer.Option(help="Rows of one group stay in one split, such as a person.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The checkpoint: a folder, or a name on the Hub such as org/name.")
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=0.0, help="Time for all methods, about; more minutes continue an earlier search.")
    ] = 15,
    output: Annotated[
        Path | None, typer.Option(help="Where to write; by default runs/NAME-advice for the data's name.")
    ] = None,
    corpus: Annotated[
        list[str] | None,
        typer.Option(help="Unlabeled text of the domain: a file or a glob, repeatable. Two more methods use it."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Find the method for labeled rows. Methods are tried, cheapest first, and the one to use is trained.

    Writes the model, a page about what each method and more labels would buy, and a recipe for each method. An
    unfinished run is resumed.
    """
    show_log(quiet)
    require_one_process("advise")
    from headstart.tasks.table_files import require_rows

    require_rows(data)
    require_models(*([] if model is None else [model]))
    from headstart.studies.advise import run as stage

    options = stage.AdviseOptions(text or (), label, group, model, minutes, output, corpus or ())
    show_summary(stage.Advice(stage.run(data, options, quiet)).summary())


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(advise)
