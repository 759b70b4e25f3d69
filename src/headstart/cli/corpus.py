"""`headstart corpus build|stats|explain|sample|diff|verify`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headstart.cli.options import (
    DryRun,
    Json,
    Quiet,
    Recipe,
    load_recipe,
    read_recipe,
    run_and_show,
    show,
    show_log,
    show_recipe,
)
from headstart.core.errors import RecipeError


class _Group(TyperGroup):
    """Points to `corpus build` if a recipe is given in place of a command."""

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        """Return the command that the arguments name."""
        if args and Path(args[0]).suffix in (".yaml", ".yml"):
            raise RecipeError(
                f"`headstart corpus` has no command {args[0]!r}", do=f"Run `headstart corpus build {shlex.join(args)}`"
            )
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Group,
    help="Raw text → a clean, deduplicated, documented corpus. Build one, or look into finished ones.",
    no_args_is_help=True,
)

Folder = Annotated[Path, typer.Argument(help="The output folder of `headstart corpus build`.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Dotted overrides, e.g. tokenizer.vocab_size=8000.")]
Limit = Annotated[int, typer.Option(min=1, help="How many documents to show.")]


@app.command()
def build(recipe: Recipe, overrides: Overrides = None, quiet: Quiet = False, dry_run: DryRun = False) -> None:
    """Build a corpus and print its statistics. An unfinished build of the same recipe is resumed."""
    show_log(quiet)
    read = read_recipe(recipe)
    from headstart.stages.corpus.recipe import CorpusRecipe

    filled = load_recipe(read, CorpusRecipe, overrides)
    if dry_run:
        show_recipe(filled)
        return
    from headstart.corpus.datasheet import inspection
    from headstart.stages.corpus import run as stage

    run_and_show(stage.run, lambda folder: inspection.render_stats(inspection.stats(folder)), filled, quiet)


@app.command()
def stats(folder: Folder, as_json: Json = False) -> None:
    """Show how many rows each step kept, the splits and the speed."""
    from headstart.corpus.datasheet import inspection

    facts = inspection.stats(folder)
    show(_json(facts) if as_json else inspection.render_stats(facts))


@app.command()
def explain(
    folder: Folder,
    rule: Annotated[str | None, typer.Option(help="Show only the documents that this rule dropped.")] = None,
    limit: Limit = 5,
    as_json: Json = False,
) -> None:
    """Show dropped documents by rule. If the corpus is unfinished, show those dropped so far."""
    from headstart.corpus.datasheet import inspection

    dropped = inspection.explain(folder, limit, rule)
    show(_json(dropped) if as_json else inspection.render_explained(dropped))


@app.command()
def sample(
    folder: Folder,
    limit: Limit = 5,
    seed: Annotated[int, typer.Option(help="The same seed selects the same documents.")] = 0,
    as_json: Json = False,
) -> None:
    """Show random documents of the corpus."""
    from headstart.corpus.datasheet import inspection

    documents = inspection.sample(folder, limit, seed)
    show(_json(documents) if as_json else inspection.render_sample(documents))


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(help="The output folder of `headstart corpus build`.", metavar="A")],
    second: Annotated[Path, typer.Argument(help="Another one.", metavar="B")],
) -> None:
    """Compare the documents of two corpora. Prints JSON with what each step dropped."""
    from headstart.corpus.datasheet import inspection

    show(_json(inspection.diff(first, second)))


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(help="A corpus, prepared token shards, a checkpoint or a finished run.")],
) -> None:
    """Hash every byte of a folder and compare with its manifest. Runs start after hashing samples of large files."""
    from headstart.core import artifact

    files = artifact.verify(folder)["files"]
    size = sum(facts["bytes"] for facts in files.values())
    show(f"{folder}: {len(files):,} files with {size / 1e6:,.1f} MB are as their manifest records them")


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
