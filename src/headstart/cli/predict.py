"""`headstart predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headstart.cli.options import (
    Config,
    Device,
    Quiet,
    Split,
    require_models,
    require_one_process,
    show_log,
    show_summary,
    use_device,
)


def predict(
    model: Annotated[
        Path, typer.Argument(help="The output folder of `headstart finetune`, or a name on the Hub such as org/name.")
    ],
    data: Annotated[
        Path, typer.Argument(help="Rows to predict: a Parquet, Arrow, CSV, TSV or JSON file, a folder, or a data set.")
    ],
    to: Annotated[Path, typer.Option(help="The file to write: .csv, .tsv, .jsonl or .parquet.")],
    top_k: Annotated[int | None, typer.Option(help="Also write the k best labels with their probabilities.")] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Also write the probability of every label.")] = False,
    only_predictions: Annotated[
        bool, typer.Option("--only-predictions", help="Leave out the columns of the input.")
    ] = False,
    processes: Annotated[
        int | None, typer.Option(help="Processes, each with one thread; default: the cores, or 1 on a GPU.")
    ] = None,
    on: Annotated[str, typer.Option(help="`local`, or `ray` for a Ray cluster.")] = "local",
    address: Annotated[str | None, typer.Option(help="Address of the Ray cluster; default: a local one.")] = None,
    chunk_rows: Annotated[int, typer.Option(help="Rows that are computed and saved together.")] = 512,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing output file.")] = False,
    device: Device = None,
    split: Split = None,
    config: Config = None,
    quiet: Quiet = False,
) -> None:
    """Predict every row with a fine-tuned model. An unfinished run is resumed."""
    show_log(quiet)
    require_one_process("predict")
    use_device(device)
    from headstart.core.config import fill
    from headstart.stages.predict.settings import PredictSettings
    from headstart.tasks.table_files import rows_of

    settings = {
        "top_k": top_k, "scores": scores, "only_predictions": only_predictions, "processes": processes, "on": on,
        "address": address, "chunk_rows": chunk_rows, "overwrite": overwrite,
    }  # fmt: skip
    filled = fill(PredictSettings, settings, "predict")
    rows = rows_of(data, split, config)
    require_models(model)
    # Imported here: torch and transformers take seconds, and wrong options are refused without them.
    from headstart.stages.predict import run as stage

    show_summary(stage.summary(stage.run(model, rows, to, filled, quiet)))


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(predict)
