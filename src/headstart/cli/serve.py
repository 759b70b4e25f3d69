"""`headstart serve`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headstart.cli.options import Quiet, require_models, require_one_process, show_log


class Target(StrEnum):
    """Where the processes run that answer."""

    local = "local"
    ray = "ray"


def serve(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Outputs of `headstart finetune`, folders that contain such outputs, or names on the Hub."),
    ] = None,
    index: Annotated[
        list[Path] | None, typer.Option(help="Output of `headstart index` to be searched; may be repeated.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; any other than loopback needs a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any that is free.")] = 8000,
    key_file: Annotated[
        Path | None, typer.Option(help="File with the key that clients send; default: the variable HEADSTART_KEY.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that answer; each has its own copy of the weights.")] = 1,
    batch_tokens: Annotated[
        int | None, typer.Option(help="Tokens of a batch; default: 1,024 on a CPU, 65,536 on a GPU.")
    ] = None,
    parallel_batches: Annotated[
        int | None, typer.Option(help="Batches computed at a time; default: one per core on a CPU, up to 4.")
    ] = None,
    queue_rows: Annotated[int, typer.Option(help="Rows answered at a time; more are refused with 429.")] = 1024,
    deadline_seconds: Annotated[float, typer.Option(help="Time after which a request is refused with 504.")] = 30.0,
    cache_mb: Annotated[float, typer.Option(help="Memory for adapters, heads and whole models.")] = 2000.0,
    on: Annotated[
        Target, typer.Option(help="`local`, or `ray` for replicas on a Ray cluster, `--workers` of them.")
    ] = Target.local,
    address: Annotated[str | None, typer.Option(help="Address of the Ray cluster; default: a local one.")] = None,
    quiet: Quiet = False,
) -> None:
    """Serve fine-tuned models over HTTP: one backbone in memory, many tasks on it.

    Heads of frozen bodies, LoRA, bottleneck adapters and (IA)³ share a body and are computed in the same batches. A
    task is asked for by the name of its folder. A folder that is replaced is loaded again without a restart.
    """
    show_log(quiet)
    require_one_process("serve")
    from headstart.core import config
    from headstart.stages.serve.settings import ServeSettings

    settings = {
        "host": host, "port": port, "workers": workers, "batch_tokens": batch_tokens,
        "parallel_batches": parallel_batches, "queue_rows": queue_rows,
        "deadline_seconds": deadline_seconds, "cache_mb": cache_mb,
    }  # fmt: skip
    filled = config.fill(ServeSettings, settings, "serve")
    require_models(*(folders or []))
    from headstart.stages.serve import run as stage

    stage.run(
        folders or [], filled, stage.read_key(filled, key_file), index or [], on_ray=on is Target.ray, address=address
    )


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(serve)
