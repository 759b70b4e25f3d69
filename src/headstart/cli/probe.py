"""`headstart probe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headstart.cli.options import Quiet, require_models, require_one_process, show_log, show_summary
from headstart.core.errors import RecipeError


def _probes() -> list[str]:
    from headstart.core import registry

    return registry.names("probes")


def probe(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL... [PROBE]...",
            help="Folders, names on the Hub or pypi:NAME, and names of probes (`headstart list probes`; default: all).",
            autocompletion=_probes,
        ),
    ],
    text: Annotated[
        str | None, typer.Option(help="A file of your own that the named probe reads in place of its data.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="The folder to create; default: beside the first model, such as runs/mini-probe."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Rows of each group of the data, such as pairs of a paradigm.")
    ] = None,
    over_run: Annotated[
        bool, typer.Option("--over-run", help="Also probe the snapshots of a pre-training run: what was learned when.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Chooses the rows and initializes the untrained network.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier output of this command.")] = False,
    quiet: Quiet = False,
) -> None:
    """Look inside models: what they know, beside the same networks untrained.

    Writes a page (HTML), tables (Parquet) and all numbers (JSON). Probes that have no meaning for a model are left out
    with the reason. The page may contain texts of the data.
    """
    show_log(quiet)
    require_one_process("probe")
    from headstart.core import config
    from headstart.stages.probe.settings import ProbeSettings

    models, probes = _split(arguments)
    settings = {
        "probes": probes, "text": text, "limit": limit, "over_run": over_run, "seed": seed,
        "overwrite": overwrite,
    }  # fmt: skip
    filled = config.fill(ProbeSettings, settings, "probe")
    require_models(*models)
    # Imported here: torch and transformers take seconds, and wrong options are refused without them.
    from headstart.stages.probe import run as stage

    show_summary(stage.summary(stage.run(models, output, filled, quiet)))


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the models and the names of probes; a folder with the name of a probe is written `./name`."""
    from headstart.core import registry

    known = registry.names("probes")
    models = [name for name in arguments if name not in known]
    for name in models:
        similar = registry.suggest(name, known)
        if similar and not Path(name).exists():
            raise RecipeError(
                f"{name!r} is neither a folder nor a probe{similar}", allowed=f"The probes: {', '.join(known)}"
            )
    return models, [name for name in arguments if name in known]


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(probe)
