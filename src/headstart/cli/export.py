"""`headstart export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headstart.cli.options import Quiet, require_models, require_one_process, show_log, show_summary


def _formats() -> list[str]:
    from headstart.core import registry

    return registry.names("exports")


def export(
    model: Annotated[
        Path, typer.Argument(help="The output folder of `headstart finetune`, or a name on the Hub such as org/name.")
    ],
    to: Annotated[str, typer.Option(help="The format; `headstart list exports` lists them.", autocompletion=_formats)],
    output: Annotated[
        Path | None, typer.Option(help="The folder to create; default: beside the model, such as runs/reviews-onnx.")
    ] = None,
    tolerance: Annotated[float, typer.Option(help="Points of the first metric that the export may lose.")] = 1.0,
    data: Annotated[
        str | None, typer.Option(help="Labeled rows to compare on; default: the test set of the run.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of torch and of the other runtime; default: those that torch uses.")
    ] = None,
    repetitions: Annotated[int, typer.Option(help="Timed batches of each size; the median counts.")] = 20,
    repo: Annotated[str | None, typer.Option(help="For `hub`: the name of the repository, such as name/model.")] = None,
    license: Annotated[
        str | None, typer.Option(help="For `hub`: the license of the model, such as apache-2.0.")
    ] = None,
    language: Annotated[
        list[str] | None, typer.Option(help="For `hub`: a language of the texts, such as en; may be repeated.")
    ] = None,
    upload: Annotated[
        bool, typer.Option("--upload", help="For `hub`: upload the folder; without it, nothing is sent.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export in the output.")] = False,
    quiet: Quiet = False,
) -> None:
    """Export a fine-tuned model to the format of another tool, and compare it with the model in torch.

    Both predict the model's test set: a paired test, size and latency are printed and written to the card. An export
    that loses more than --tolerance is refused.
    """
    show_log(quiet)
    require_one_process("export")
    from headstart.core import config, registry
    from headstart.stages.export.settings import ExportSettings

    registry.target("exports", to)
    settings = {
        "to": to, "tolerance": tolerance, "data": data, "threads": threads, "repetitions": repetitions, "repo": repo,
        "license": license, "language": language or [], "upload": upload, "overwrite": overwrite,
    }  # fmt: skip
    filled = config.fill(ExportSettings, settings, "export")
    require_models(model)
    # Imported here: torch and transformers take seconds, and wrong options are refused without them.
    from headstart.stages.export import run as stage

    show_summary(stage.summary(stage.run(model, output, filled, quiet)))


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(export)
