"""What the commands share: arguments and options, and the lines printed about finished runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headstart.core import artifact, log
from headstart.core.errors import RecipeError
from headstart.core.recipes.variables import hide

if TYPE_CHECKING:
    from pydantic import BaseModel

RecipeT = TypeVar("RecipeT", bound="BaseModel")
RANK, WORLD_SIZE = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
"""The rank of this process and the number of processes, as `torchrun` sets them."""

Recipe = Annotated[str, typer.Argument(help="A YAML recipe; recipes/… also finds those in the package.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Dotted overrides, e.g. training.budget='5 min'.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only validate the recipe and print it with all defaults.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Split = Annotated[
    str | None, typer.Option(help="DATA is a data set, org/name on the Hub or a folder: read this split of it.")
]
Config = Annotated[str | None, typer.Option(help="The configuration of the data set, if it has several.")]
Device = Annotated[
    str | None, typer.Option(help="The device: cpu, cuda, cuda:N, xpu or mps; default: the GPU if there is one.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar or progress lines.")]


def require_models(*models: str | Path) -> None:
    """Raise if a model is a path, and there is no such folder, before the slow imports; names are not looked up."""
    from headstart.checkpoint.names import is_path, require_folder

    for model in models:
        if is_path(model):
            require_folder(Path(model), model)


def use_device(device: Device) -> None:
    """Choose the device of this command and of the processes that it starts."""
    if device is not None:
        from headstart.training.settings import DEVICE

        os.environ[DEVICE] = device


def show(text: Any) -> None:
    """Print a result on stdout."""
    typer.echo(text)


def show_log(quiet: bool) -> None:
    """Print Headstart's log on stderr; the ranks of a distributed run other than 0 print only warnings."""
    log.show(quiet or RANK > 0)


def read_recipe(recipe: str) -> tuple[Path, dict[str, Any]]:
    """Return the path and the content of a recipe file; refuse a missing or malformed one before torch is imported."""
    from headstart.core import config

    path = config.find(recipe)
    return path, config.parse(path)


def load_recipe(read: tuple[Path, dict[str, Any]], model: type[RecipeT], overrides: list[str] | None) -> RecipeT:
    """Return the filled recipe of what `read_recipe` returned."""
    from headstart.core import config

    path, parsed = read
    return config.load(path, model, overrides or [], parsed)


def show_recipe(recipe: BaseModel) -> None:
    """Print a filled recipe as YAML."""
    from headstart.core import config

    typer.echo(config.to_yaml(recipe), nl=False)


def is_finished(folder: Path) -> bool:
    """True if a run was finished before this command started."""
    return artifact.is_complete(folder)


def run_and_show(run: Callable[[Any, bool], Path], summary: Callable[[Path], str], recipe: Any, quiet: bool) -> None:
    """Run a verb with its filled recipe and print the summary of its output folder."""
    before = is_finished(recipe.output)
    folder = run(recipe, quiet)
    if RANK == 0:
        note_finished(before, folder)
        show_summary(summary(folder))


def show_summary(text: str) -> None:
    """Print what a run did, without the values of the variables of its recipe."""
    show(hide(text))


def note_finished(before: bool, folder: Path) -> None:
    """Say that there was nothing to do, if the run was finished before."""
    if before:
        typer.echo(hide(f"{folder} is already finished with this recipe; nothing to do."), err=True)


def require_one_process(verb: str) -> None:
    """Refuse a command that `torchrun` started in several processes."""
    if WORLD_SIZE > 1:
        raise RecipeError(
            f"headstart {verb} was started in {WORLD_SIZE} processes",
            allowed="torchrun starts only `headstart pretrain`, `headstart finetune` and `headstart multitask`",
            do=f"Run `headstart {verb}` without torchrun",
        )
