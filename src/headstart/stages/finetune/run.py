"""`headstart finetune`: a model for a task, compared over seeds with baselines and other adaptations."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path

from headstart.checkpoint.names import Kind, folder_of
from headstart.core import artifact, config, file_hashes, registry
from headstart.core.artifact import Staging
from headstart.core.data import SPLITS
from headstart.core.log import logger
from headstart.corpus.read import readers
from headstart.evaluation.baselines import NotApplicable
from headstart.stages.finetune import result as results
from headstart.stages.finetune import table as comparison
from headstart.stages.finetune.adapt_first import adapted_setup
from headstart.stages.finetune.cell import MethodRequest, assist, run_method
from headstart.stages.finetune.cell_store import CELL, RemoteCells
from headstart.stages.finetune.error_page import SCORES, write_page
from headstart.stages.finetune.forgetting import open_probe
from headstart.stages.finetune.processes import require_processes, require_shardable, warn_about_processes
from headstart.stages.finetune.recipe import FinetuneRecipe, methods_of
from headstart.stages.finetune.result import MethodResult, cell_name
from headstart.stages.finetune.setup import Setup, open_setup
from headstart.stages.runs import card
from headstart.stages.runs.folder import RunFolder, pin_recipe
from headstart.stages.runs.machine import record_machine
from headstart.stages.runs.manifest import ADAPTER, FinetuneData, FinetuneManifest
from headstart.tasks.source import require_checkpoint
from headstart.tasks.table_files import locate
from headstart.tokens import tokenizer
from headstart.training.world import World, joined

_NAMES: dict[str, Kind] = {"model": "model", "adaptation.teacher": "model", "data.dataset": "dataset"}
"""The settings that may be names on the Hub."""


def run(recipe: FinetuneRecipe, quiet: bool = False) -> Path:
    """Fine-tune by a recipe and return the folder, a plain Hugging Face model of the best seed.

    Each method with each seed is a cell. An interrupted run continues with the missing cells. Every process that
    `torchrun` starts calls this function. All of them train each cell together; rank 0 does the rest.
    """
    with joined(recipe.training.ddp_timeout) as world, ExitStack() as stack:
        require_processes(recipe, world)
        store = _checkpoint_store(recipe) if world.is_main else None
        with world.main_first(), store.restored_run() if store is not None else nullcontext():
            # The other ranks read the commits in the recipe that rank 0 has written.
            recipe = pin_recipe(recipe, _NAMES)
            require_checkpoint(recipe.model)
            folder = stack.enter_context(RunFolder(recipe.output, recipe, inputs_of(recipe), writes=world.is_main))
            if store is not None and folder.status != "finished":
                store.begin(folder)
        if world.broadcast(folder.status) != "finished":
            if store is not None:
                store.synchronize()
            world.barrier()
            with warnings_of_main(world):
                setup = adapted_setup(open_setup(recipe), folder.path, quiet, store)
            require_shardable(setup, world)
            if world.is_main:
                run_and_publish(setup, folder, world, quiet, store)
            else:
                assist_cells(setup, folder, world)
        world.barrier()
    return folder.path


def _checkpoint_store(recipe: FinetuneRecipe) -> RemoteCells | None:
    url = recipe.training.checkpoint_store
    return None if url is None else RemoteCells(url, recipe)


@contextmanager
def warnings_of_main(world: World) -> Iterator[None]:
    """Drop the warnings of ranks other than 0, which read the same rows as rank 0."""
    level = logger.level
    if not world.is_main:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def run_and_publish(
    setup: Setup, folder: RunFolder, world: World, quiet: bool, store: RemoteCells | None = None
) -> None:
    """Run all cells and write the result, as rank 0."""
    recipe = setup.recipe
    warn_about_processes(setup, world)
    machines = record_machine(folder.path, recipe.training)
    setup = replace(setup, probe=open_probe(recipe.forgetting, setup.source), machines=machines)
    cells, left_out = _run_cells(setup, folder, world, quiet, store)
    _publish(setup, folder, cells, left_out)


def summary(folder: Path) -> str:
    """Return the table of a finished run, the verdicts in words and the cost."""
    manifest = FinetuneManifest.read(folder)
    return "\n".join([
        manifest.table,
        "",
        *manifest.verdicts,
        *manifest.notes,
        *([manifest.adapted.sentence()] if manifest.adapted else []),
        *([manifest.sharing()] if manifest.trained_with else []),
        *manifest.data.truncation(),
        *(overlap.sentence() for overlap in manifest.data.overlap),
        *(f"{method} is left out: {reason}" for method, reason in manifest.left_out.items()),
        f"cost of all trained models: {manifest.cost.sentence()}",
        *([f"cost of adapting first: {manifest.adapted.cost.sentence()}"] if manifest.adapted else []),
        *([f"kept weights: {manifest.kept_weights}"] if manifest.kept_weights else []),
        *([f"layer weights: {manifest.layer_weights}"] if manifest.layer_weights else []),
        f"model: {folder} (seed {manifest.seed})",
        *(f"errors: {path}" for path in [folder / "evaluation.html"] if path.is_file()),
    ])  # fmt: skip


def inputs_of(recipe: FinetuneRecipe) -> dict[str, str]:
    """Return content hashes of the checkpoint, of the files with rows, and of what the methods read besides."""
    sources = {split: recipe.data.source(split) for split in SPLITS}
    located = {f"{split} file": locate(source) for split, source in sources.items() if source is not None}
    hashes = {name: files.sha256()[:16] for name, files in located.items()}
    if isinstance(recipe.forgetting, str) and Path(recipe.forgetting).is_file():
        hashes["forgetting file"] = file_hashes.sha256(Path(recipe.forgetting))[:16]
    chosen = registry.name_of("adaptations", recipe.adaptation)
    for method, section in methods_of(recipe):
        prefix = "" if method == chosen else f"{method} "
        texts, teacher = getattr(section, "texts", None), getattr(section, "teacher", None)
        if texts is not None and Path(texts).is_file():
            hashes[f"{prefix}texts file"] = file_hashes.sha256(Path(texts))[:16]
        if teacher is not None and folder_of(teacher).is_dir():
            hashes[f"{prefix}teacher"] = artifact.identity(folder_of(teacher))[:16]
    if recipe.adapt_first is not None and isinstance(recipe.adapt_first.texts, list):
        texts = readers.describe(readers.expand(recipe.adapt_first.texts, "adapt_first.texts"))
        hashes["adapt_first texts"] = config.fingerprint(texts)
    return {"checkpoint": artifact.identity(folder_of(recipe.model))[:16], **hashes}


def _run_cells(
    setup: Setup, folder: RunFolder, world: World, quiet: bool, store: RemoteCells | None
) -> tuple[dict[str, list[MethodResult]], dict[str, str]]:
    """Return the results of every method by seed, baselines first, and the methods that are left out with reasons."""
    cells: dict[str, list[MethodResult]] = {}
    left_out = dict(setup.left_out)
    for request in _requests(setup, folder, world, quiet):
        if request.method in left_out:
            continue
        try:
            result = _run_cell(request, folder.path, store)
        except NotApplicable as reason:
            left_out[request.method] = str(reason)
            continue
        cells.setdefault(request.method, []).append(result)
    return cells, left_out


def assist_cells(setup: Setup, folder: RunFolder, world: World) -> None:
    """Train with rank 0 in each cell that is not finished, as another rank; baselines are left to rank 0."""
    for request in _requests(setup, folder, world, quiet=True):
        if request.section is not None and not world.broadcast(True):
            assist(request, request.section)


def _requests(setup: Setup, folder: RunFolder, world: World, quiet: bool) -> Iterator[MethodRequest]:
    """Yield each method with each seed, baselines first."""
    recipe = setup.recipe
    for method, section in sorted(setup.methods.items(), key=lambda item: item[1] is not None):
        for seed in range(recipe.seed, recipe.seed + recipe.seeds):
            yield MethodRequest(
                setup, method, section, seed, folder.path / "work" / cell_name(method, seed), folder.fingerprint,
                model_folder(folder, seed) if method == setup.chosen else None, quiet, world,
            )  # fmt: skip


def _run_cell(request: MethodRequest, folder: Path, store: RemoteCells | None) -> MethodResult:
    """Return the result of a cell: from disk if it is finished, otherwise by running it."""
    cell_dir = cell_folder(folder, request)
    is_finished = artifact.is_complete(cell_dir)
    if request.section is not None:
        request.world.broadcast(is_finished)
    if is_finished:
        artifact.verify(cell_dir, CELL)
        return MethodResult.from_dict(results.read(cell_dir))
    if store is not None and request.section is not None:
        request = replace(request, store=store.checkpoints_of(request.work))
    result = run_method(request)
    if request.section is not None:
        copy_logs(request.work, folder / "logs" / request.name)
    write_cell(folder, request, result)
    shutil.rmtree(folder / "work", ignore_errors=True)
    if store is not None:
        store.upload_finished()
    return result


def cell_folder(folder: Path, request: MethodRequest) -> Path:
    """Return where the result of a method with a seed is kept in the folder of a run."""
    return folder / "cells" / request.name


def write_cell(folder: Path, request: MethodRequest, result: MethodResult) -> None:
    """Publish the result of a method with a seed in the folder of its run."""
    results.write(cell_folder(folder, request), result.to_dict(), CELL, {SCORES: request.work / SCORES})


def copy_logs(work: Path, logs: Path) -> None:
    """Replace the logs of a cell by those in its working folder, if it trained anything."""
    shutil.rmtree(logs, ignore_errors=True)
    if (work / "logs").is_dir():
        shutil.copytree(work / "logs", logs)


def model_folder(folder: RunFolder, seed: int) -> Path:
    """Return where the model of one seed is kept until the best one is published."""
    return folder.path / "models" / f"seed-{seed}"


def _publish(
    setup: Setup, folder: RunFolder, cells: Mapping[str, Sequence[MethodResult]], left_out: Mapping[str, str]
) -> None:
    """Write the model of the best seed, its tokenizer, its card and the manifest into the folder."""
    # The first validation score is the one to select by.
    best = max(cells[setup.chosen], key=lambda cell: next(iter(cell.validation.values())))
    model = model_folder(folder, best.seed)
    setup.task.show(setup.splits_for(best.seed).train, best.seed)
    manifest = _manifest(setup, folder, cells, left_out, best)
    with artifact.published(folder.path, FinetuneManifest.KIND, **manifest.to_dict()) as staging:
        _copy_model(model, staging)
        tokenizer.save_with_length(setup.source.tokenizer(), staging.path, setup.spec.max_length)
        (staging / "README.md").write_text(card.finetuned(manifest), encoding="utf-8")
        write_page(setup, folder.path / "cells", cells[setup.chosen], best, staging)
    shutil.rmtree(folder.path / "models", ignore_errors=True)


def _manifest(
    setup: Setup, folder: RunFolder, cells: Mapping[str, Sequence[MethodResult]], left_out: Mapping[str, str],
    best: MethodResult,
) -> FinetuneManifest:  # fmt: skip
    task, splits, chosen = setup.task, setup.splits, setup.chosen
    metric = task.metrics()[0]
    table = comparison.rows(cells, chosen, splits.test.labels, metric)
    trained = [cell.cost for runs in cells.values() for cell in runs if cell.details.trainable_parameters is not None]
    is_adapter = (model_folder(folder, best.seed) / ADAPTER).is_file()
    return FinetuneManifest(
        recipe=folder.recipe,
        seed=best.seed,
        parents={"model": artifact.identity(setup.source.path)},
        machines=[m.model_copy(update={"attention": best.details.attention or ""}) for m in setup.machines],
        task={
            **config.to_dict(setup.recipe.task),
            **task.state(),
            "metrics": list(task.metrics()),
            **({"decision": best.details.decision} if best.details.decision else {}),
        },
        data=FinetuneData(
            train_source=splits.train.source,
            validation_source=splits.validation.source,
            test_source=splits.test.source,
            train_rows=best.details.train_rows or 0,
            validation_rows=len(splits.validation),
            test_rows=len(splits.test),
            hashes={name: folder.inputs[key] for name in SPLITS if (key := f"{name} file") in folder.inputs},
            overlap=setup.overlaps,
            truncated=best.details.truncated,
            max_length=setup.spec.max_length,
        ),
        metrics={method: [cell.test for cell in runs] for method, runs in cells.items()},
        validation={method: [cell.validation for cell in runs] for method, runs in cells.items()},
        table=comparison.markdown(table, metric, chosen, any(best.details.truncated.values())),
        verdicts=comparison.sentences(table, metric, chosen),
        left_out=dict(left_out),
        notes=best.details.notes,
        comparisons={row.method: row.lead.to_dict() for row in table if row.lead is not None},
        cost=reduce(add, trained + ([setup.adapted.cost] if setup.adapted and setup.adapted.is_counted else [])),
        architecture=best.details.architecture or "",
        trainable_parameters=best.details.trainable_parameters or 0,
        steps=best.details.steps or 0,
        best_step=best.details.best_step or 0,
        pipeline=None if is_adapter else task.pipeline,
        is_adapter=is_adapter,
        usage=task.usage,
        target_cls=setup.spec.target_cls,
        **({"mixture": best.details.mixture} if best.details.mixture else {}),
        **({"adapted": setup.adapted} if setup.adapted is not None else {}),
        **({"trained_with": list(setup.trained_with)} if setup.trained_with else {}),
    )


def _copy_model(model: Path, staging: Staging) -> None:
    for path in model.iterdir():
        if path.is_dir():
            shutil.copytree(path, staging / path.name)
        elif path.name != artifact.MANIFEST:
            shutil.copy2(path, staging / path.name)
