"""What a cell of a study does: prepare text, pre-train, fine-tune, run a baseline, or count overlap.

A cell is ordered by a line of JSON and answers by another, so that a worker process, Ray and Slurm serve alike.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from headstart.core import artifact, config, registry
from headstart.core.contracts import Task
from headstart.core.errors import DataError, HeadstartError, ResourceError, first_line
from headstart.core.lock import FolderLock
from headstart.evaluation.baselines import NotApplicable
from headstart.evaluation.cost import CostConfig, Meter
from headstart.stages.finetune import run as finetune
from headstart.stages.finetune.cell import MethodResult, Splits
from headstart.stages.finetune.forgetting import probe
from headstart.stages.finetune.recipe import FinetuneRecipe, methods_of
from headstart.stages.finetune.run import AdaptationNotApplicable
from headstart.stages.pretrain import run as pretrain
from headstart.stages.pretrain.build import tokenizer_of
from headstart.stages.pretrain.prepare import prepare
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.studies.graph import WORK, Node, home
from headstart.studies.run import overlap as study_overlap
from headstart.studies.run.expand import BaselineRecipe, OverlapRecipe
from headstart.tasks import labelled
from headstart.tasks.source import require_checkpoint

RESULT, CURVE, JOURNAL = "result.json", "curve.jsonl", "journal.jsonl"


def order(node: Node, output: Path, threads: int = 1) -> str:
    """Write down what is to be done, where, and by how many threads."""
    return json.dumps({"node": node.to_dict(), "output": str(output), "cwd": os.getcwd(), "threads": threads})


def run_job(asked: str) -> str:
    """Do what was ordered, unless it is done, and say how it ended; errors are told, never raised.

    `again` says whether another attempt may help: a recipe or data at fault stay so.
    """
    wanted = json.loads(asked)
    os.chdir(wanted["cwd"])
    torch.set_num_threads(wanted["threads"])
    node, output = Node.from_dict(wanted["node"]), Path(wanted["output"])
    started = time.perf_counter()

    def ended(how: str, **said: Any) -> str:
        return json.dumps({"ended": how, "seconds": time.perf_counter() - started, **said})

    try:
        with _held(output / WORK / node.id) as work:
            if not artifact.is_complete(home(output, node.id)):
                _note(output, node, "began")
                HANDLERS[node.kind](node, output, work)
                _note(output, node, "ended")
    except HeadstartError as error:
        return ended("failed", reason=str(error), again=isinstance(error, ResourceError))
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        return ended("failed", reason=reason, again=True, trace=traceback.format_exc())
    return ended("finished")


@contextmanager
def _held(work: Path) -> Iterator[Path]:
    """Hold the folder in which a cell is worked on, waiting for a worker of a killed study that still holds it."""
    while True:
        work.mkdir(parents=True, exist_ok=True)
        try:
            lock = FolderLock(work, wait=True)
            break
        except FileNotFoundError:
            continue  # Whoever held it has just finished and swept up.
    yield work
    shutil.rmtree(work, ignore_errors=True)
    del lock


def _note(output: Path, node: Node, what: str) -> None:
    """Add a line to the study's journal, in one write, so that lines of several workers do not mix."""
    line = json.dumps({"at": time.time(), "cell": node.id, "what": what, "process": os.getpid()})
    with (output / JOURNAL).open("a", encoding="utf-8") as journal:
        journal.write(line + "\n")


def _prepare(node: Node, output: Path, work: Path) -> None:
    recipe = _filled(PretrainRecipe, node)
    place = home(output, node.id)
    place.mkdir(parents=True, exist_ok=True)
    with Meter(config=recipe.cost, energy=False) as meter:
        prepared = prepare(recipe.corpus, tokenizer_of(recipe), recipe.seed, place, quiet=True)
    cost = meter.tag().to_dict()
    with artifact.published(place, "prepared text", node=node.to_dict(), data=prepared.facts, cost=cost) as staging:
        (staging / "prepared.json").write_text(json.dumps(prepared.parents), encoding="utf-8")


def _pretrain(node: Node, output: Path, work: Path) -> None:
    recipe = _filled(PretrainRecipe, node)
    pretrain.run(recipe.model_copy(update={"output": home(output, node.id)}), quiet=True)


def _finetune(node: Node, output: Path, work: Path) -> None:
    recipe = _filled(FinetuneRecipe, node)
    require_checkpoint(recipe.model)
    task, splits = _opened(recipe)
    (method, section), *_ = methods_of(recipe)
    assert section is not None
    try:
        methods, _ = finetune.applicable_methods(recipe, task)
    except AdaptationNotApplicable as error:
        _publish(node, output, {"left_out": error.reason})
        return
    finetune.check(recipe, task, splits, methods)
    known_before = _probe(recipe.forgetting, recipe.model)
    cell, model = finetune.run_adaptation(
        recipe, task, splits, method, section, recipe.seed, work, fingerprint=node.id, quiet=True
    )
    finetune.add_forgetting(cell, model, known_before)
    _write(node, output, task, splits, cell, work / "logs" / "metrics.jsonl")


_probe = lru_cache(maxsize=4)(probe)
"""A worker does many cells of few checkpoints, and what those could do before is measured once."""


def _baseline(node: Node, output: Path, work: Path) -> None:
    recipe = _filled(BaselineRecipe, node)
    task, splits = _opened(recipe)
    try:
        cell = finetune.run_baseline(task, splits, recipe.baseline, recipe.seed, CostConfig())
    except NotApplicable as reason:
        _publish(node, output, {"left_out": str(reason)})
        return
    _write(node, output, task, splits, cell)


def _overlap(node: Node, output: Path, work: Path) -> None:
    _publish(node, output, study_overlap.count(_filled(OverlapRecipe, node), work))


HANDLERS: dict[str, Callable[[Node, Path, Path], None]] = {
    "prepare": _prepare, "pretrain": _pretrain, "finetune": _finetune, "baseline": _baseline, "overlap": _overlap,
}  # fmt: skip


def _filled(model: Any, node: Node) -> Any:
    return config.fill(model, node.recipe, where=node.id)


def _opened(recipe: FinetuneRecipe | BaselineRecipe) -> tuple[Task, Splits]:
    """Build the task and read its rows, those of this seed to train on."""
    task: Task = registry.build("tasks", recipe.task)
    whole = finetune.read_data(recipe.data, task)
    return task, replace(whole, train=labelled.choose(whole.train, recipe.data.train_rows, recipe.seed, "labels"))


def _write(node: Node, output: Path, task: Task, splits: Splits, cell: MethodResult, curve: Path | None = None) -> None:
    """Publish what a cell found, with the gold values, so that a study's folder tells everything by itself."""
    _require_unchanged(node)
    found = {**cell.to_dict(), "metric": task.metrics()[0], "gold": list(splits.test.labels)}
    _publish(node, output, found, curve)


def _require_unchanged(node: Node) -> None:
    """Refuse to publish what was found in other rows than those that the address names."""
    for key, path in node.recipe["data"].items():
        if key in node.inputs and artifact.sha256(Path(path))[: len(node.inputs[key])] != node.inputs[key]:
            raise DataError(
                f"{path} was changed after the study began",
                do="Run the study again: what the file holds now makes cells of its own",
            )


def _publish(node: Node, output: Path, found: dict[str, Any], curve: Path | None = None) -> None:
    with artifact.staged(home(output, node.id), "cell of a study", node=node.to_dict()) as staging:
        (staging / RESULT).write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
        if curve is not None and curve.is_file():
            shutil.copy2(curve, staging / CURVE)
