"""The command line: a verb, a recipe, dotted overrides. The work is done in the stages."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Annotated, NoReturn

import typer
from typer.core import TyperGroup

import headstart
from headstart.cli import (
    advise,
    cluster,
    corpus,
    describe,
    export,
    init,
    label,
    predict,
    probe,
    runs,
    search,
    serve,
    study,
    train,
    use,
)
from headstart.cli.options import RANK, WORLD_SIZE, show_log
from headstart.core import faults
from headstart.core.errors import HeadstartError
from headstart.core.recipes.variables import hide
from headstart.stages.runs import environment, launch

_INTERRUPTED = 130
_ORDER = (
    "init", "advise", "corpus", "pretrain", "finetune", "multitask", "launch", "evaluate", "predict", "label", "export",
    "serve", "generate", "probe", "index", "search", "study", "runs", "show", "plan", "list", "schema", "doctor",
    "bench",
)  # fmt: skip
"""The order of the commands in `headstart --help`: that of a project, then what describes recipes and machines."""


class _InOrder(TyperGroup):
    """Lists commands and groups of commands in one order."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """Return the names of the commands."""
        return sorted(self.commands, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))


app = typer.Typer(
    cls=_InOrder,
    help="Pre-train a language model once on your own text, fine-tune it for many tasks, "
    "and know what each step bought and cost.",
    no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
)  # fmt: skip
app.add_typer(corpus.app, name="corpus")
app.add_typer(label.app, name="label")
app.add_typer(study.app, name="study")
for _commands in (init, advise, train, cluster, use, predict, export, serve, probe, search, describe, runs):
    _commands.add_to(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headstart {headstart.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    show_log(quiet=False)
    if debug:
        os.environ["HEADSTART_DEBUG"] = "1"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; user-facing errors are printed without a traceback unless --debug is given."""
    if arguments is None:
        environment.keep_memory(sys.argv[1:])
    environment.silence(WORLD_SIZE)
    environment.wait_passively()
    launch.follow_launcher()
    if threading.current_thread() is threading.main_thread():
        # SIGTERM, and SIGUSR1 of a scheduler, are handled like Ctrl-C: a run in progress saves a checkpoint first.
        for number in (signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM)):
            signal.signal(number, signal.default_int_handler)
    try:
        environment.require_limits(sys.argv[1:] if arguments is None else arguments)
        app(args=arguments, prog_name="headstart")
    except HeadstartError as error:
        if os.environ.get("HEADSTART_DEBUG"):
            raise
        # The processes of a distributed run often fail together.
        typer.echo(f"headstart{f', rank {RANK}' if RANK else ''}: {faults.explain(error) or error}", err=True)
        sys.exit(error.exit_code)
    except SystemExit as stop:
        # Typer turns Ctrl-C into this code without printing anything.
        if stop.code != _INTERRUPTED:
            raise
        _exit_interrupted()
    except KeyboardInterrupt:
        # Ctrl-C before typer has installed its handler.
        _exit_interrupted()
    except Exception as error:
        if os.environ.get("HEADSTART_DEBUG"):
            raise
        refusal = faults.explain(error)
        if refusal is not None:
            typer.echo(f"headstart: {refusal}", err=True)
            sys.exit(refusal.exit_code)
        typer.echo(
            hide(f"headstart: {type(error).__name__}: {error}\n")
            + "Internal error, please report it. `headstart --debug …` shows the traceback.",
            err=True,
        )
        sys.exit(1)


def _exit_interrupted() -> NoReturn:
    if RANK == 0:
        typer.echo("headstart: interrupted; run the same command again to resume.", err=True)
    sys.exit(0 if launch.LAUNCHED in os.environ else launch.RESUMABLE)
