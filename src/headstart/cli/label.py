"""`headstart label choose|errors|ask|add`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headstart.cli.options import show_log, show_summary

app = typer.Typer(
    help="Choose the rows that are worth labeling, label them, and add them to the training data.",
    no_args_is_help=True,
)

Model = Annotated[
    Path, typer.Option(help="The output folder of `headstart finetune`, or a name on the Hub such as org/name.")
]
Sheet = Annotated[Path, typer.Option(help="The file to write: .csv for a spreadsheet, .json for Label Studio.")]
Number = Annotated[int, typer.Option(min=1, help="How many rows.")]


@app.command()
def choose(
    pool: Annotated[Path, typer.Argument(help="Rows without labels: a Parquet, CSV, TSV, JSON Lines or JSON file.")],
    model: Model,
    to: Sheet,
    number: Number = 100,
    strategy: Annotated[
        str,
        typer.Option(help="`diverse`: unsure rows of different kinds; `margin`: the most unsure rows; `random`."),
    ] = "diverse",
    exclude: Annotated[
        list[Path] | None, typer.Option(help="Leave out the texts of this file, such as the training data.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed chooses the same rows.")] = 0,
) -> None:
    """Choose the rows of a pool whose labels would teach the model most."""
    show_log(quiet=False)
    settings = _settings(strategy)
    from headstart.stages.label import choose as stage

    done = stage.run(pool, model, to, number, settings, exclude or (), seed)
    show_summary(
        f"{done['output']}: {done['chosen']:,} of {done['pool']:,} rows, strategy {done['strategy']}; mean margin "
        f"{done['mean_margin']:.2f}, in the pool {done['mean_margin_of_the_pool']:.2f}"
    )


@app.command()
def errors(
    data: Annotated[Path, typer.Argument(help="Labeled rows that the model was not trained on.")],
    model: Model,
    to: Sheet,
    number: Number = 100,
) -> None:
    """Find labeled rows whose label is probably wrong, the surest first."""
    show_log(quiet=False)
    from headstart.stages.label import choose as stage

    done = stage.run_errors(data, model, to, number)
    show_summary(f"{done['output']}: {done['suspected']:,} of {done['rows']:,} labels are probably wrong")


@app.command()
def ask(file: Annotated[Path, typer.Argument(help="A CSV file that `headstart label choose` wrote.")],
        model: Model) -> None:  # fmt: skip
    """Label the rows of a file in the terminal, one key per row. Every answer is saved at once."""
    show_log(quiet=False)
    from headstart.stages.label import ask as stage

    done = stage.run(file, model)
    show_summary(f"{done['output']}: {done['labeled']:,} of {done['rows']:,} rows have a label")


@app.command()
def add(
    file: Annotated[Path, typer.Argument(help="A file with the labels filled in, or an export of Label Studio.")],
    model: Model,
    train: Annotated[Path, typer.Option(help="The training data until now.")],
    to: Annotated[Path, typer.Option(help="The new training data, a Parquet file.")],
) -> None:
    """Add labeled rows to the training data; a text that is there already gets the new label."""
    show_log(quiet=False)
    from headstart.stages.label import add as stage

    done = stage.run(file, model, train, to)
    new = f"; new labels: {', '.join(done['new_labels'])}" if done["new_labels"] else ""
    show_summary(
        f"{done['output']}: {done['rows']:,} rows, {done['added']:,} added, {done['replaced']:,} with a new label{new}"
    )


def _settings(strategy: str) -> Any:
    """Return the strategy; raises before torch is imported if there is no such one."""
    from headstart.core.errors import RecipeError
    from headstart.core.registry import suggest
    from headstart.stages.label.strategies import STRATEGIES

    if strategy not in STRATEGIES:
        raise RecipeError(
            f"there is no strategy {strategy!r}{suggest(strategy, list(STRATEGIES))}",
            allowed=f"Strategies are {', '.join(STRATEGIES)}",
        )
    return strategy
