"""The last step: write the recipe of each method, train the chosen one on all rows, and open the test file."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headstart.checkpoint.names import folder_of
from headstart.core import artifact, config, registry
from headstart.core.contracts import Task
from headstart.core.log import logger
from headstart.core.recipes import text as recipe_text
from headstart.evaluation.comparison import Comparison, compare_runs
from headstart.evaluation.intervals import bootstrap
from headstart.stages.finetune import result as results
from headstart.stages.finetune import run as finetune
from headstart.stages.finetune.data import read_held_out
from headstart.stages.finetune.finished import Finetuned
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.finetune.result import cell_name
from headstart.stages.init.splits import NAMES
from headstart.stages.runs.folder import RECIPE
from headstart.stages.runs.manifest import ADAPTER, FinetuneManifest
from headstart.studies.advise.methods import ADAPT_FIRST, Teacher, recipe_of, teacher_recipe
from headstart.studies.advise.search import SearchResult, TriedMethod

MODEL, RECIPES, TEACHER, OPENED = "model", "recipes", "teacher", "test_opened_for.json"
_TIMED_TEXTS = 20
_HEADER = """\
# {method} as `headstart advise` ran it. Run it with `headstart finetune {path}`.
# Set `seeds: 6` for a comparison that can reach p = 0.05.
"""
_TEACHER_FIRST = """\
# Train its teacher first: headstart finetune {path} seeds=1 output={teacher}{merge}
"""


def write_recipes(output: Path, outcome: SearchResult, base: FinetuneRecipe) -> None:
    """Write one recipe per method; that of a baseline trains the best network beside it."""
    (output / RECIPES).mkdir(exist_ok=True)
    data = {name: f"${{here}}/../data/{name}.parquet" for name in NAMES}
    for result in outcome.results:
        if not result.rounds:
            continue
        network = result if result.method.is_network else outcome.best_network
        teacher = f"runs/{output.name}-{TEACHER}"
        recipe = recipe_of(network.method, network.rate, base, data, teacher)
        # The recipe must run without the search; the pre-training of the search belongs to this folder.
        recipe.get(ADAPT_FIRST, {}).pop("folder", None)
        recipe["output"] = f"runs/{output.name}-{result.method.name}"
        recipe["compare_with"] = [] if result.method.is_network else [result.method.name]
        path = output / RECIPES / f"{result.method.name}.yaml"
        header = _HEADER.format(method=result.method.name, path=path.as_posix())
        if network.method.teacher is not None:
            header += _teacher_first(output, network.method.teacher, teacher)
            texts = network.method.teacher.texts
            recipe["adaptation"]["texts"] = f"${{here}}/../{texts.relative_to(output).as_posix()}"
        artifact.write_whole(path, header + recipe_text.dump(recipe))


def _teacher_first(output: Path, teacher: Teacher, folder: str) -> str:
    path = (output / RECIPES / f"{teacher.method.name}.yaml").as_posix()
    is_lora = "lora" in (teacher.method.name, teacher.method.adaptation)
    return _TEACHER_FIRST.format(path=path, teacher=folder, merge=" adaptation.merge=true" * is_lora)


def train(output: Path, outcome: SearchResult, base: FinetuneRecipe, quiet: bool) -> Path:
    """Train the chosen network on the training rows, beside the baselines, and score them on the test rows."""
    name = outcome.best_network.method.name
    path = output / RECIPES / f"{name}.yaml"
    folder = output / MODEL
    baselines = [result.method.name for result in outcome.results if result.rounds and not result.method.is_network]
    raw = {**config.parse(path), "output": str(folder), "compare_with": baselines}
    section = outcome.best_network.method.adapt_first
    if section is not None:
        raw[ADAPT_FIRST] = {**raw[ADAPT_FIRST], "folder": section.folder}
    if outcome.best_network.method.teacher is not None:
        teacher = _train_teacher(output, outcome.best_network.method.teacher, base, quiet)
        raw["adaptation"] = {**raw["adaptation"], "teacher": str(teacher)}
    recipe = config.fill(FinetuneRecipe, raw, where=str(path))
    if (folder / RECIPE).is_file() and not _is_same(folder, recipe):
        # More time led to another choice.
        shutil.rmtree(folder)
    _record_opening(output, name)
    if not artifact.is_complete(folder):
        logger.info("training %s on all training rows; then the test rows are scored", name)
    return finetune.run(recipe, quiet)


def _train_teacher(output: Path, teacher: Teacher, base: FinetuneRecipe, quiet: bool) -> Path:
    """Train the teacher of the chosen network on the training rows; the test rows are not read."""
    data = {name: str(output / "data" / f"{name}.parquet") for name in ("train", "validation")}
    # A recipe needs test rows. These scores are not used.
    recipe = teacher_recipe(teacher, base, {**data, "test": data["validation"]}, output, 0)
    folder = output / f"{TEACHER}-{config.fingerprint(recipe)}"
    if not artifact.is_complete(folder):
        logger.info("training %s, the teacher, on all training rows", teacher.method.name)
    return finetune.run(config.fill(FinetuneRecipe, {**recipe, "output": str(folder)}), quiet)


def _is_same(folder: Path, recipe: FinetuneRecipe) -> bool:
    saved = config.fill_saved(FinetuneRecipe, config.parse(folder / RECIPE), str(folder))
    names = (ADAPT_FIRST, "adaptation", "training", "compare_with")
    return all(getattr(saved, name) == getattr(recipe, name) for name in names)


def _record_opening(output: Path, name: str) -> None:
    """Keep a list of the models that the test rows were scored for, because each further one makes them less fresh."""
    names = opened_for(output)
    if name not in names:
        artifact.write_whole(output / OPENED, json.dumps([*names, name]) + "\n")


def opened_for(output: Path) -> list[str]:
    """Return the methods whose models were scored on the test rows."""
    path = output / OPENED
    names: list[str] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return names


def score_test_rows(folder: Path, name: str) -> dict[str, Any]:
    """Return the test scores of the chosen model and the baselines, with intervals and paired comparisons.

    `name` is that of the chosen method, which is not always that of its adaptation.
    """
    facts = FinetuneManifest.read(folder)
    model = Finetuned(folder, facts)
    gold = read_held_out(model.recipe.data, model.task, "test").labels
    metric = model.task.metrics()[0]
    predictions = {
        method: results.read(folder / "cells" / cell_name(method, model.recipe.seed))["predictions"]
        for method in facts.metrics
    }
    chosen = registry.name_of("adaptations", model.recipe.adaptation)
    rows = []
    for method, predicted in predictions.items():
        score = bootstrap(metric, gold, predicted)
        shown = name if method == chosen else method
        row: dict[str, Any] = {"method": shown, "score": score.value, "low": score.low, "high": score.high}
        if method != chosen:
            lead = compare_runs(gold, {0: predictions[chosen]}, {0: predicted}, metric)
            row["behind"] = lead_facts(lead)
        rows.append(row)
    return {"metric": metric, "rows": len(gold), "scores": rows, "cost": facts.cost.to_dict()}


def lead_facts(lead: Comparison) -> dict[str, float]:
    """Return a comparison of two runs as plain values; its p-value is that of the bootstrap over examples."""
    return {"difference": lead.difference, "low": lead.low, "high": lead.high, "p": lead.p_over_examples}


def measure(folder: Path, rows: Sequence[Any]) -> dict[str, float]:
    """Return the size of the model on disk, and the median time to predict one text."""
    facts = FinetuneManifest.read(folder)
    model = Finetuned(folder, facts)
    model.predict_texts(rows[:1])
    times = []
    for row in rows[:_TIMED_TEXTS]:
        started = time.perf_counter()
        model.predict_texts([row])
        times.append(time.perf_counter() - started)
    size = sum((folder / name).stat().st_size for name in artifact.read_manifest(folder)["files"])
    if (folder / ADAPTER).is_file():
        size += sum(path.stat().st_size for path in folder_of(model.recipe.model).glob("*.safetensors"))
    return {"milliseconds": 1000 * statistics.median(times), "megabytes": size / 1e6}


def sample_texts(base: FinetuneRecipe) -> list[Any]:
    """Return some validation rows in the form that `predict_texts` takes."""
    task: Task = registry.build("tasks", base.task)
    rows = read_held_out(base.data, task, "validation")
    columns = list(rows.columns.values())
    values = list(zip(*columns, strict=True))[:_TIMED_TEXTS]
    return [row[0] if len(row) == 1 else row for row in values]


def weights_size(result: TriedMethod) -> float | None:
    """Return the megabytes of the weights that a method needs to predict; None for baselines."""
    parameters = next(iter(result.rounds.values())).details.parameters if result.rounds else None
    return None if parameters is None else 4 * parameters / 1e6
