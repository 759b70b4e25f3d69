"""`headstart multitask`: several tasks trained with one body, each compared with baselines and with itself alone."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from headstart.core import artifact, registry
from headstart.core.errors import RecipeError
from headstart.core.log import logger
from headstart.core.pages.markdown import markdown_table
from headstart.evaluation.cost import PriceTag
from headstart.evaluation.metrics import about
from headstart.stages.finetune import result as results
from headstart.stages.finetune import run as finetune
from headstart.stages.finetune.leakage import find_overlaps
from headstart.stages.finetune.processes import require_processes
from headstart.stages.finetune.recipe import FinetuneRecipe, names_in
from headstart.stages.finetune.result import MethodResult, cell_name
from headstart.stages.finetune.setup import Setup, open_setup, trained_rows
from headstart.stages.multitask.cell import TaskRun, run_seed, seeds_of
from headstart.stages.multitask.recipe import MultitaskRecipe
from headstart.stages.runs import card
from headstart.stages.runs.folder import RunFolder, pin_recipe
from headstart.stages.runs.manifest import FinetuneManifest, MultitaskManifest
from headstart.tasks.source import require_checkpoint
from headstart.training.world import World, joined


def run(recipe: MultitaskRecipe, quiet: bool = False) -> Path:
    """Train all tasks of a recipe and return the folder, with a subfolder for each task: a plain Hugging Face model.

    For each seed, the tasks are trained together. The rest is a run of `headstart finetune` for each task, in which
    the joint training is a method whose cells are finished: the baselines, the task alone, the table, the best seed.
    An interrupted run is resumed. Every process that `torchrun` starts calls this function.
    """
    with joined(recipe.training.ddp_timeout) as world, ExitStack() as stack:
        with world.main_first():
            recipe = pin_recipe(recipe, {"model": "model"})
            require_checkpoint(recipe.model)
            alone = {name: pin_recipe(recipe.of_task(name), {"data.dataset": "dataset"}) for name in recipe.tasks}
            require_processes(next(iter(alone.values())), world)
            _require_replicas(recipe, world)
            inputs = {
                f"{name}: {key}": value for name, one in alone.items() for key, value in finetune.inputs_of(one).items()
            }
            folder = stack.enter_context(RunFolder(recipe.output, recipe, inputs, writes=world.is_main))
        if world.broadcast(folder.status) != "finished":
            with finetune.warnings_of_main(world):
                setups = {
                    name: shared_setup(one, tuple(other for other in alone if other != name))
                    for name, one in alone.items()
                }
            _run(recipe, setups, folder, world, stack, quiet)
        world.barrier()
    return folder.path


def summary(folder: Path) -> str:
    """Return the table over all tasks, then the summary of each task."""
    manifest = MultitaskManifest.read(folder)
    parts = [manifest.table, *manifest.overlaps, f"cost of all trained models: {manifest.cost.sentence()}"]
    return "\n\n".join([
        "\n".join(parts),
        *(f"## {name}\n\n{finetune.summary(folder / name)}" for name in manifest.recipe["tasks"]),
    ])  # fmt: skip


def shared_setup(recipe: FinetuneRecipe, others: tuple[str, ...]) -> Setup:
    """Return the setup of one task whose chosen method trains it with other tasks; that method alone is one more."""
    setup = replace(open_setup(recipe), trained_with=others)
    own = registry.name_of("adaptations", recipe.adaptation)
    compared = names_in(recipe.compare_with)
    methods = {setup.chosen: recipe.adaptation, **setup.methods}
    if own not in compared:
        del methods[own]
    return replace(setup, methods=methods)


def _run(
    recipe: MultitaskRecipe, setups: Mapping[str, Setup], folder: RunFolder, world: World, stack: ExitStack, quiet: bool
) -> None:  # fmt: skip
    """Run everything that is unfinished, and publish the result."""
    runs: dict[str, TaskRun] = {}
    for name, setup in setups.items():
        one = setup.recipe
        # A task's result depends on all tasks.
        inputs = finetune.inputs_of(one) | {"tasks that are trained together": folder.fingerprint}
        with world.main_first():
            own = stack.enter_context(RunFolder(one.output, one, inputs, writes=world.is_main))
        runs[name] = TaskRun(setup, own)
    overlaps = _overlaps(runs) if world.is_main else []
    pending = {name: run for name, run in runs.items() if world.broadcast(run.folder.status) != "finished"}
    for seed in seeds_of(recipe) if pending else ():
        run_seed(recipe, runs, seed, folder, quiet, world)
    for run in pending.values():
        if world.is_main:
            finetune.run_and_publish(run.setup, run.folder, world, quiet)
        else:
            finetune.assist_cells(run.setup, run.folder, world)
    if world.is_main:
        manifest = _manifest(recipe, runs, folder, overlaps)
        with artifact.published(folder.path, MultitaskManifest.KIND, **manifest.to_dict()) as staging:
            (staging / "README.md").write_text(card.multitask(manifest), encoding="utf-8")
        shutil.rmtree(folder.path / "work", ignore_errors=True)


def _require_replicas(recipe: MultitaskRecipe, world: World) -> None:
    """Raise if processes would shard the weights, which the networks of the tasks share."""
    if world.size > 1 and recipe.training.shards_weights:
        raise RecipeError(
            f"`training.parallel` is {recipe.training.parallel}, but the networks of several tasks share their weights",
            allowed="Each process holds shared weights whole",
            do="Set `training.parallel` to ddp",
        )


def _overlaps(runs: Mapping[str, TaskRun]) -> list[str]:
    """Return a sentence for each pair of tasks in which rows that test one train the other, and log it."""
    sentences = []
    for trained, other in ((a, b) for a in runs for b in runs if a != b):
        setup, test = runs[trained].setup, runs[other].setup.splits.test
        train = trained_rows(setup.recipe, setup.splits)
        if len(train.columns) != len(test.columns):
            continue
        rows = sum(overlap.shared for overlap in find_overlaps(train, test.take([]), test))
        if rows:
            sentences.append(
                f"{rows:,} of {len(test):,} test rows of {other} are among the training rows of {trained}, whose body "
                "it shares."
            )
    for sentence in sentences:
        logger.warning("%s", sentence)
    return sentences


def _manifest(
    recipe: MultitaskRecipe, runs: Mapping[str, TaskRun], folder: RunFolder, overlaps: list[str]
) -> MultitaskManifest:
    facts = {name: FinetuneManifest.read(run.folder.path) for name, run in runs.items()}
    scores = {name: _means(own, own.task["metrics"][0]) for name, own in facts.items()}
    joint = next(iter(facts.values())).method
    cost, shares = PriceTag(), dict[str, float]()
    for name, run in runs.items():
        for method, runs_of_method in facts[name].metrics.items():
            for index in range(len(runs_of_method)):
                cell = run.folder.path / "cells" / cell_name(method, recipe.seed + index)
                result = MethodResult.from_dict(results.read(cell))
                if result.details.share is not None:
                    shares.setdefault(name, result.details.share)
                is_trained = result.details.trainable_parameters is not None
                if is_trained and (method != joint or run is next(iter(runs.values()))):
                    cost += result.cost
    return MultitaskManifest(
        recipe=folder.recipe,
        seed=recipe.seed,
        parents={"model": artifact.identity(next(iter(runs.values())).setup.source.path)},
        shares=shares,
        scores=scores,
        table=_table({name: own.task["metrics"][0] for name, own in facts.items()}, scores),
        overlaps=overlaps,
        cost=cost,
    )


def _means(facts: FinetuneManifest, metric: str) -> dict[str, float]:
    return {
        method: sum(scores[metric] for scores in seeds) / len(seeds) for method, seeds in facts.metrics.items() if seeds
    }


def _table(metrics: Mapping[str, str], scores: Mapping[str, Mapping[str, float]]) -> str:
    """Return the test scores of all methods, a row for each task."""
    methods = list(dict.fromkeys(method for own in scores.values() for method in own))
    methods.sort(key=lambda method: not method.startswith("multitask_"))
    rows = [
        [name, metrics[name], *(_points(own.get(method), metrics[name]) for method in methods)]
        for name, own in scores.items()
    ]  # fmt: skip
    return markdown_table(["task", "metric", *methods], rows)


def _points(value: float | None, metric: str) -> str:
    scale = about(metric).scale
    return "–" if value is None else f"{scale * value:.{3 if scale == 1 else 1}f}"
