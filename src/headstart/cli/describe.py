"""`headstart plan|list|schema|doctor|bench`: what describes recipes, runs and machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headstart.cli.options import Overrides, Recipe, read_recipe, show
from headstart.core.errors import RecipeError

_VERBS = ("corpus", "pretrain", "finetune", "multitask", "index", "study")


def _groups() -> list[str]:
    from headstart.core import registry

    return list(registry.TABLES)


def plan(
    recipe: Recipe,
    overrides: Overrides = None,
    best: Annotated[
        bool, typer.Option("--best", help="Choose size and vocabulary for the time budget, from measured runs.")
    ] = False,
) -> None:
    """Forecast the cost of a recipe. A few steps are timed on this machine."""
    path, parsed = read_recipe(recipe)
    from headstart import verbs
    from headstart.stages.finetune.recipe import FinetuneRecipe
    from headstart.stages.pretrain.recipe import PretrainRecipe

    filled = verbs.load(path, overrides or [], parsed)
    if isinstance(filled, PretrainRecipe | FinetuneRecipe):
        filled.require_local_inputs()
    if best:
        from headstart.stages.plan import best_size

        show(best_size.render(best_size.run(filled)))
        return
    from headstart.stages.plan import forecast as stage

    show(stage.render(stage.run(filled)))


def list_(
    group: Annotated[
        str | None,
        typer.Argument(
            help="objectives, backbones, tasks, adaptations, metrics, baselines, exports or probes.",
            autocompletion=_groups,
        ),
    ] = None,
) -> None:
    """List the names that recipes can use. Each has a description and a paper; without a group, list the groups."""
    from headstart.core import registry

    if group is None:
        for name in registry.TABLES:
            typer.echo(f"{name:<12}  {', '.join(registry.names(name))}")
        return
    entries = registry.describe(group)
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        typer.echo(f"{entry.name:<{width}}  {entry.help}" + (f"  [{entry.paper}]" if entry.paper else ""))


def schema(
    verb: Annotated[
        str,
        typer.Argument(
            help="corpus, pretrain, finetune, multitask, index or study.", autocompletion=lambda: list(_VERBS)
        ),
    ] = "pretrain",
) -> None:
    """Print the JSON Schema of a recipe. Editors use it for completion and validation."""
    from headstart import verbs
    from headstart.core import registry
    from headstart.core.recipes.schema import schema as schema_of

    known = verbs.by_verb()
    if verb not in known:
        raise RecipeError(
            f"there is no recipe for {verb!r}{registry.suggest(verb, known)}", allowed=f"Known: {', '.join(known)}"
        )
    typer.echo(json.dumps(schema_of(known[verb]), indent=2, ensure_ascii=False))


def doctor(
    run: Annotated[Path | None, typer.Argument(help="The output folder of a run, finished or in progress.")] = None,
) -> None:
    """Check this machine, or the health of a run. For the machine, it shows which settings follow."""
    if run is not None:
        from headstart import verbs
        from headstart.stages.doctor import checkup

        show(checkup.render(checkup.run(run, verbs.recipe_of_run(run))))
        return
    from headstart.stages.doctor import machine as stage

    show(stage.render(stage.run()))


def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Scripts in `benchmarks/`; all of them by default.")] = None,
    quick: Annotated[bool, typer.Option(help="Do as little work as possible and write no page.")] = False,
    repetitions: Annotated[int | None, typer.Option(min=1, help="Repetitions; the median counts.")] = None,
) -> None:
    """Run the benchmarks of a checkout. They compare systems side by side; writes docs/results/performance.md."""
    from headstart.stages import bench as stage

    stage.run(names or [], quick, repetitions)


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command()(plan)
    app.command("list")(list_)
    app.command()(schema)
    app.command()(doctor)
    app.command()(bench)
