"""Checkpoint × task × adaptation → model, with seeds, baselines and the same network from scratch beside it."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from headstart.backbones.checkpoint import Checkpoint
from headstart.core import artifact, config, registry
from headstart.core.config import Section
from headstart.core.contracts import Adaptation, Task
from headstart.core.errors import RecipeError
from headstart.evaluation import metrics
from headstart.evaluation.baselines import NotApplicable
from headstart.evaluation.cost import CostConfig, Meter, PriceTag
from headstart.stages.finetune import table as comparison
from headstart.stages.finetune.cell import MethodResult, Splits, run_cell
from headstart.stages.finetune.forgetting import Probe, probe
from headstart.stages.finetune.recipe import FinetuneRecipe, LabelledData, methods_of, settings_of
from headstart.stages.runs import card
from headstart.stages.runs.folder import RunFolder
from headstart.tasks import labelled
from headstart.tasks.source import CheckpointFolder, require_checkpoint
from headstart.training.loop import require_batches_of_one_size

ADAPTER = "adapter_config.json"
"""The file by which peft knows a folder that holds an adapter in place of a whole model."""

_FROM_NOTHING = "scratch"
"""The adaptation that keeps nothing of the checkpoint, and so has nothing to forget."""


def run(recipe: FinetuneRecipe, quiet: bool = False) -> Path:
    """Fine-tune by a recipe and return the folder, a plain Hugging Face model of the best seed.

    Every method × seed is a cell of its own; a run that was stopped goes on with the cells that are missing.
    """
    require_checkpoint(recipe.model)
    folder = RunFolder(recipe.output, recipe, _inputs(recipe))
    if folder.status == "finished":
        return folder.path
    task: Task = registry.build("tasks", recipe.task)
    whole = read_data(recipe.data, task)
    methods, left_out = applicable_methods(recipe, task)
    check(recipe, task, whole, methods)
    known_before = probe(recipe.forgetting, recipe.model)
    chosen = next(iter(methods))
    cells: dict[str, list[MethodResult]] = {}
    for method, section in sorted(methods.items(), key=lambda item: item[1] is not None):
        for seed in range(recipe.seed, recipe.seed + recipe.seeds):
            splits = Splits(
                labelled.choose(whole.train, recipe.data.train_rows, seed, "labels"), whole.validation, whole.test
            )
            try:
                cell = _cell(recipe, folder, task, splits, method, section, seed, method == chosen, known_before, quiet)
            except NotApplicable as reason:
                left_out[method] = str(reason)
                break
            cells.setdefault(method, []).append(cell)
    _publish(recipe, folder, whole, task, cells, chosen, left_out)
    return folder.path


class AdaptationNotApplicable(RecipeError):
    """The recipe's own adaptation cannot serve its task on its checkpoint; `reason` says why, as a clause."""

    def __init__(self, reason: str, *arguments: Any, **told: Any) -> None:
        """Hold the reason beside the whole message."""
        super().__init__(*arguments, **told)
        self.reason = reason


def applicable_methods(recipe: FinetuneRecipe, task: Task) -> tuple[dict[str, Section | None], dict[str, str]]:
    """Return the methods that can serve the task on this checkpoint, and why the others of its company cannot."""
    source = CheckpointFolder(recipe.model, task, recipe.seed)
    methods: dict[str, Section | None] = {}
    left_out: dict[str, str] = {}
    for name, section in methods_of(recipe):
        reason: str | None = None
        if section is not None:
            adaptation: Adaptation = registry.build("adaptations", section)
            reason = adaptation.supports(task, source.family) or adaptation.supports_kind(source.kind)
        if reason is None:
            methods[name] = section
        elif section is recipe.adaptation:
            kind = getattr(recipe.task, registry.SELECTOR["tasks"])
            raise AdaptationNotApplicable(
                reason,
                f"adaptation {name!r} does not serve the task {kind!r} on {recipe.model}, of the family "
                f"{source.family} and the kind {source.kind}: {reason}",
                do="Choose another adaptation, task or checkpoint",
            )
        else:
            left_out[name] = reason
    return methods, left_out


def check(recipe: FinetuneRecipe, task: Task, whole: Splits, methods: dict[str, Section | None]) -> None:
    """Find what would stop a later cell before the first one is paid for: checkpoint, budgets, lengths, labels."""
    for section in methods.values():
        if section is not None:
            require_batches_of_one_size(settings_of(recipe.training, section))
    reading = CheckpointFolder(recipe.model, task, recipe.seed).reading(recipe.training.max_length)
    network = Checkpoint(Checkpoint.Config(path=Path(recipe.model))).max_length()
    most = min(reading.tokenizer.model_max_length, network or reading.max_length)
    if reading.max_length > most:
        raise RecipeError(
            f"training.max_length is {recipe.training.max_length}",
            allowed=f"{recipe.model} reads {most} tokens at most",
            do="Lower training.max_length",
        )
    for split in (whole.validation, whole.test):
        task.encode(split, reading)


def _inputs(recipe: FinetuneRecipe) -> dict[str, str]:
    """Name the checkpoint and the labelled files by their content."""
    files = {"train": recipe.data.train, "validation": recipe.data.validation, "test": recipe.data.test}
    files["forgetting"] = recipe.forgetting if isinstance(recipe.forgetting, str) else 0
    found = {f"{name} file": Path(path) for name, path in files.items() if isinstance(path, str)}
    hashes = {name: artifact.sha256(path)[:16] for name, path in found.items() if path.is_file()}
    return {"checkpoint": artifact.identity(Path(recipe.model))[:16], **hashes}


def read_data(data: LabelledData, task: Task) -> Splits:
    """Read the three files and let the task learn its labels from the whole training file."""
    train = labelled.read(data.train, task.columns("train"))
    test = labelled.some(labelled.read(data.test, task.columns("test")), data.test_rows)
    if isinstance(data.validation, str):
        validation = labelled.read(data.validation, task.columns("validation"))
    else:
        # The rows that are taken out are read as a validation file would be: a task may ask something else of them.
        whole = labelled.read(data.train, task.columns("validation"))
        train, _ = labelled.split_off(train, data.validation)
        _, validation = labelled.split_off(whole, data.validation)
    task.fit_labels(train)
    for name in task.metrics():
        registry.target("metrics", name)
    return Splits(train, validation, test)


def _cell(
    recipe: FinetuneRecipe, folder: RunFolder, task: Task, splits: Splits, method: str, section: Section | None,
    seed: int, keeps_model: bool, known_before: Probe | None, quiet: bool,
) -> MethodResult:  # fmt: skip
    """Return one cell: from disk if it was finished before, else by running it."""
    home = folder.path / "cells" / f"{method}-seed-{seed}"
    if artifact.is_complete(home):
        artifact.verify(home, "cell")
        return MethodResult(**json.loads((home / "result.json").read_text(encoding="utf-8")))
    if section is None:
        cell = run_baseline(task, splits, method, seed, recipe.cost)
    else:
        work = folder.path / "work" / home.name
        cell, model = run_adaptation(recipe, task, splits, method, section, seed, work, folder.fingerprint, quiet)
        add_forgetting(cell, model, known_before)
        logs = folder.path / "logs" / home.name
        shutil.rmtree(logs, ignore_errors=True)
        if (work / "logs").is_dir():  # there are none where nothing was trained
            shutil.copytree(work / "logs", logs)
        if keeps_model:
            with artifact.staged(folder.path / "models" / f"seed-{seed}", "model") as staging:
                reading = CheckpointFolder(recipe.model, task, seed).reading(recipe.training.max_length)
                task.save(model, reading, staging)
    with artifact.staged(home, "cell") as staging:
        (staging / "result.json").write_text(json.dumps(cell.to_dict(), ensure_ascii=False), encoding="utf-8")
    shutil.rmtree(folder.path / "work", ignore_errors=True)
    return cell


def run_adaptation(
    recipe: FinetuneRecipe, task: Task, splits: Splits, method: str, section: Section, seed: int, work: Path,
    fingerprint: str, quiet: bool,
) -> tuple[MethodResult, PreTrainedModel]:  # fmt: skip
    """Train one adaptation with one seed; what an unfinished run needs to go on lies in `work`."""
    return run_cell(
        method=method, adaptation=registry.build("adaptations", section), task=task, splits=splits,
        checkpoint=recipe.model, settings=settings_of(recipe.training, section),
        batch_size=recipe.training.batch_size, max_length=recipe.training.max_length, seed=seed, work=work,
        fingerprint=fingerprint, cost=recipe.cost, quiet=quiet,
    )  # fmt: skip


def add_forgetting(cell: MethodResult, model: PreTrainedModel, known_before: Probe | None) -> None:
    """Add to a cell what its method did to what the checkpoint could do before, where that is asked for."""
    if known_before is not None and cell.method != _FROM_NOTHING:
        cell.details["forgetting"] = asdict(known_before.forgetting(model))


def run_baseline(task: Task, splits: Splits, method: str, seed: int, cost: CostConfig) -> MethodResult:
    """Let one baseline learn and predict; raises `NotApplicable` where it has nothing to say on such rows."""
    names = task.metrics()
    with Meter(config=cost, energy=False) as meter:
        result = registry.resolve("baselines", method)(
            splits.train, splits.validation, splits.test, metric=names[0], seed=seed
        )
    test = metrics.compute(names, splits.test.labels, result.predictions)
    details = {"chosen": result.chosen, "train_rows": len(splits.train)}
    return MethodResult(method, seed, list(result.predictions), test, details=details, cost=meter.tag().to_dict())


def _publish(
    recipe: FinetuneRecipe, folder: RunFolder, whole: Splits, task: Task, cells: dict[str, list[MethodResult]],
    chosen: str, left_out: dict[str, str],
) -> None:  # fmt: skip
    metric = task.metrics()[0]
    # The first value is the one to select by.
    best = max(cells[chosen], key=lambda cell: next(iter(cell.validation.values())))
    source = folder.path / "models" / f"seed-{best.seed}"
    task.show(labelled.choose(whole.train, recipe.data.train_rows, best.seed, "labels"), best.seed)
    table = comparison.rows(cells, chosen, whole.test.labels, metric)
    trained = [
        PriceTag.from_dict(cell.cost)
        for runs in cells.values()
        for cell in runs
        if "trainable_parameters" in cell.details
    ]
    facts: dict[str, Any] = {
        "recipe": folder.recipe,
        "seed": best.seed,
        "parents": {"model": artifact.identity(Path(recipe.model))},
        "task": {**config.to_dict(recipe.task), **task.state(), "metrics": list(task.metrics())},
        "data": {
            **{f"{split}_source": getattr(whole, split).source for split in ("train", "validation", "test")},
            "train_rows": best.details["train_rows"], "validation_rows": len(whole.validation),
            "test_rows": len(whole.test),
        },
        "metrics": {method: [cell.test for cell in runs] for method, runs in cells.items()},
        "validation": {method: [cell.validation for cell in runs] for method, runs in cells.items()},
        "table": comparison.markdown(table, metric, chosen),
        "verdicts": comparison.sentences(table, metric, chosen),
        "left_out": left_out,
        "notes": best.details["notes"],
        "comparisons": {row.method: row.lead.__dict__ for row in table if row.lead is not None},
        "cost": reduce(add, trained).to_dict(),
        "architecture": best.details["architecture"],
        "trainable_parameters": best.details["trainable_parameters"],
        "pipeline": None if (source / ADAPTER).is_file() else task.pipeline,
        "usage": task.usage,
    }  # fmt: skip
    with artifact.published(folder.path, "model of finetune", **facts) as staging:
        for path in source.iterdir():
            if path.is_dir():
                shutil.copytree(path, staging / path.name)
            elif path.name != artifact.MANIFEST:
                shutil.copy2(path, staging / path.name)
        CheckpointFolder(recipe.model, task, best.seed).tokenizer().save_pretrained(str(staging))
        (staging / "README.md").write_text(card.finetuned(facts), encoding="utf-8")
    shutil.rmtree(folder.path / "models", ignore_errors=True)


def summary(folder: Path) -> str:
    """Return the table of a finished run, the verdicts in words and the cost."""
    facts = artifact.read_manifest(folder)
    cost = PriceTag.from_dict(facts["cost"]).sentence()
    return "\n".join(
        [
            facts["table"],
            "",
            *facts["verdicts"],
            *facts.get("notes", []),
            *(f"{method} is left out: {reason}" for method, reason in facts.get("left_out", {}).items()),
            f"cost of all trained rows: {cost}",
            f"model: {folder} (seed {facts['seed']})",
        ]
    )
