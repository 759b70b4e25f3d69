"""`headstart evaluate|generate`: what a finished model is used for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headstart.cli.options import Config, Device, Json, Split, require_models, show, use_device


def evaluate(
    model: Annotated[
        Path, typer.Argument(help="The output folder of a finished run, or a name on the Hub such as org/name.")
    ],
    data: Annotated[Path, typer.Argument(help="Labeled rows for a fine-tuned model, raw text for a pre-trained one.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Other columns, such as task.text=review task.label=stars.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write the page of errors into this folder.")] = None,
    by: Annotated[str | None, typer.Option(help="Show the score for each value of this column.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="Compare with this fine-tuned model: a folder or a name.")
    ] = None,
    device: Device = None,
    split: Split = None,
    config: Config = None,
) -> None:
    """Evaluate a model on other data, with 95 % intervals. The hashes of its files are verified first.

    With --output, a page is written as HTML, Markdown and JSON: confusions, calibration, scores by length and class,
    the worst errors, and rows whose label should be checked. The page contains texts of the data.
    """
    use_device(device)
    from headstart.tasks.table_files import rows_of

    rows = rows_of(data, split, config)
    require_models(model, *([] if against is None else [against]))
    # Imported here: torch and transformers take seconds.
    from headstart.stages import evaluate as stage

    result = stage.run(model, rows, output, by, against, overrides or ())
    show(json.dumps(result, indent=2, ensure_ascii=False))


def generate(
    model: Annotated[
        Path, typer.Argument(help="The output folder of a finished run, any Hugging Face folder, or a name on the Hub.")
    ],
    prompts: Annotated[list[str], typer.Argument(help="Texts to continue, or texts with blanks to fill, written ___.")],
    max_new_tokens: Annotated[int, typer.Option(help="Maximum length of a continuation.")] = 40,
    num_beams: Annotated[int, typer.Option(help="Number of beams; 1 means no beam search.")] = 1,
    temperature: Annotated[float | None, typer.Option(help="Sample; values below 1 favor likely tokens.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample among k tokens; for blanks: candidates shown.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample among the likeliest tokens of this probability.")] = None,
    num_return_sequences: Annotated[int, typer.Option(help="Texts per prompt.")] = 1,
    seed: Annotated[int, typer.Option(help="The same seed samples the same texts.")] = 0,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Generate text: continuations and filled blanks. For blanks, the likeliest candidates are shown too."""
    use_device(device)
    require_models(model)
    from headstart.core import config
    from headstart.stages import generate as stage

    settings = {
        "max_new_tokens": max_new_tokens, "num_beams": num_beams, "temperature": temperature, "top_k": top_k,
        "top_p": top_p, "num_return_sequences": num_return_sequences, "seed": seed,
    }  # fmt: skip
    texts = stage.run(model, prompts, config.fill(stage.GenerateSettings, settings, "generate"))
    show(json.dumps(texts, indent=2, ensure_ascii=False) if as_json else stage.render(texts))


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command()(evaluate)
    app.command()(generate)
