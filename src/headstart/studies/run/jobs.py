"""The jobs of a study: prepare text, pre-train, fine-tune, run a baseline or a probe, or count overlap.

A job is one line of JSON and its answer is another, so worker processes, Ray and Slurm run the same function.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from headstart.core import artifact, config, faults, file_hashes, registry
from headstart.core.contracts import Task
from headstart.core.data import SPLITS, Examples
from headstart.core.errors import DataError, HeadstartError, ResourceError, first_line
from headstart.core.lock import FolderLock
from headstart.core.recipes import variables
from headstart.evaluation.baselines import UNTRAINED, NotApplicable
from headstart.evaluation.cost import CostConfig, Meter
from headstart.stages.finetune import result as results
from headstart.stages.finetune.adapt_first import adapted_setup
from headstart.stages.finetune.applicable import AdaptationNotApplicable
from headstart.stages.finetune.cell import MethodRequest, run_baseline, run_method
from headstart.stages.finetune.data import read_data
from headstart.stages.finetune.forgetting import open_probe
from headstart.stages.finetune.leakage import hash_rows
from headstart.stages.finetune.recipe import FinetuneRecipe, LabeledData
from headstart.stages.finetune.result import MethodDetails, MethodResult
from headstart.stages.finetune.setup import open_setup
from headstart.stages.pretrain import run as pretrain
from headstart.stages.pretrain.build import tokenizer_of
from headstart.stages.pretrain.prepare import prepare
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.probe.probe import ProbeNotApplicable, ProbeScore
from headstart.stages.probe.run import build_one, figures
from headstart.studies.graph import WORK, Node, cell_dir
from headstart.studies.run import overlap
from headstart.studies.run.nodes import BaselineRecipe, OverlapRecipe, ProbeRecipe
from headstart.tasks.base import BaseTask
from headstart.tasks.source import require_checkpoint
from headstart.tasks.table_files import locate

CURVE, JOURNAL = "curve.jsonl", "journal.jsonl"
_CELL = "cell of a study"


def serialize_job(node: Node, output: Path, threads: int = 1) -> str:
    """Return the JSON line that `run_job` takes: the node, the study's folder and the number of threads."""
    values = node.to_dict()
    job = {"node": values, "variables": variables.to_json(values), "output": str(output), "cwd": os.getcwd()}
    return json.dumps({**job, "threads": threads})


def run_job(line: str) -> str:
    """Run a job, unless its cell is finished, and return a JSON line about its end; errors are returned, not raised.

    `again` is true if another attempt may succeed, which an error in the recipe or the data rules out.
    """
    job = json.loads(line)
    os.chdir(job["cwd"])
    torch.set_num_threads(job["threads"])
    node, output = Node.from_dict(variables.from_json(job["node"], job["variables"])), Path(job["output"])
    started = time.perf_counter()

    def answer(ended: str, **values: Any) -> str:
        return json.dumps({"ended": ended, "seconds": time.perf_counter() - started, **values})

    try:
        with _locked(output / WORK / node.id) as work:
            if not artifact.is_complete(cell_dir(output, node.id)):
                _log(output, node, "began")
                HANDLERS[node.kind](node, output, work)
                _log(output, node, "ended")
    except Exception as error:
        reported = faults.explain(error) or (error if isinstance(error, HeadstartError) else None)
        if reported is not None:
            return answer("failed", reason=str(reported), again=isinstance(reported, ResourceError))
        reason = variables.hide(f"{type(error).__name__}: {first_line(error)}")
        return answer("failed", reason=reason, again=True, trace=variables.hide(traceback.format_exc()))
    return answer("finished")


@contextmanager
def _locked(work: Path) -> Iterator[Path]:
    """Lock the work folder of a cell and remove it at the end; waits for a worker of a killed study that holds it."""
    with FolderLock(work, wait=True):
        yield work
        shutil.rmtree(work, ignore_errors=True)


def _log(output: Path, node: Node, event: str) -> None:
    """Append a line to the study's journal in one write, so that lines of several workers do not mix."""
    line = json.dumps({"at": time.time(), "cell": node.id, "what": event, "process": os.getpid()})
    with (output / JOURNAL).open("a", encoding="utf-8") as journal:
        journal.write(line + "\n")


def _prepare(node: Node, output: Path, work: Path) -> None:
    recipe = _filled(PretrainRecipe, node)
    folder = cell_dir(output, node.id)
    folder.mkdir(parents=True, exist_ok=True)
    with Meter(config=recipe.cost, energy=False) as meter:
        prepared = prepare(recipe.corpus, tokenizer_of(recipe), recipe.seed, folder, quiet=True)
    cost = meter.tag().to_dict()
    with artifact.published(folder, "prepared text", node=node.to_dict(), data=prepared.facts, cost=cost) as staging:
        (staging / "prepared.json").write_text(json.dumps(prepared.parents), encoding="utf-8")


def _pretrain(node: Node, output: Path, work: Path) -> None:
    recipe = _filled(PretrainRecipe, node)
    pretrain.run(recipe.model_copy(update={"output": cell_dir(output, node.id)}), quiet=True)


def _finetune(node: Node, output: Path, work: Path) -> None:
    recipe = _filled(FinetuneRecipe, node)
    require_checkpoint(recipe.model)
    try:
        setup = adapted_setup(open_setup(recipe), work, quiet=True)
    except AdaptationNotApplicable as error:
        _publish(node, output, {"left_out": error.reason})
        return
    setup = replace(setup, probe=_probe(recipe.forgetting, str(setup.source.path)))
    request = MethodRequest(setup, setup.chosen, recipe.adaptation, recipe.seed, work, node.id, quiet=True)
    result = run_method(request)
    if setup.adapted is not None and setup.adapted.is_counted:
        result = replace(result, cost=result.cost + setup.adapted.cost)
    test = setup.splits.test
    untrained = _is_untrained(result.details, setup.task)
    _publish_result(node, output, result, setup.task, test, untrained, work / "logs" / "metrics.jsonl")


def _is_untrained(details: MethodDetails, task: Task) -> bool:
    """Return whether nothing was learned from labeled rows: no weights, no threshold, no example in a prompt."""
    show: Any = type(task).show
    shows_rows = show is not BaseTask.show and getattr(getattr(task, "config", None), "shots", None) != 0
    return not (details.trainable_parameters or details.decision or details.adapted or shows_rows)


_probe = lru_cache(maxsize=4)(open_probe)
"""A worker runs many cells on few checkpoints, and each checkpoint is measured once."""


def _baseline(node: Node, output: Path, work: Path) -> None:
    recipe = _filled(BaselineRecipe, node)
    task: Task = registry.build("tasks", recipe.task)
    splits = read_data(recipe.data, task).sample_train(recipe.data.train_rows, recipe.seed)
    try:
        result = run_baseline(task, splits, recipe.baseline, recipe.seed, CostConfig())
    except NotApplicable as reason:
        _publish(node, output, {"left_out": str(reason)})
        return
    _publish_result(node, output, result, task, splits.test, untrained=recipe.baseline in UNTRAINED)


def _overlap(node: Node, output: Path, work: Path) -> None:
    _publish(node, output, overlap.count(_filled(OverlapRecipe, node), work))


def _run_probe(node: Node, output: Path, work: Path) -> None:
    recipe = _filled(ProbeRecipe, node)
    probe = build_one(recipe.probe, recipe.settings)
    try:
        with Meter(energy=False) as meter:
            scores = figures(recipe.model, probe, recipe.untrained_seed)
    except ProbeNotApplicable as reason:
        _publish(node, output, {"left_out": reason.found})
        return
    for name, path in probe.files().items():
        _require_content(path, partial(file_hashes.sha256, path), node.inputs.get(name))
    _publish(node, output, {"scores": [_figure(score) for score in scores], "cost": meter.tag().to_dict()})


def _figure(score: ProbeScore) -> dict[str, Any]:
    """Return a figure of a probe as plain JSON values; `points` has null for an item that was left out."""
    points = [None if math.isnan(point) else float(point) for point in score.points]
    design = {} if score.design is None else {"design": asdict(score.design)}
    return {"measure": score.measure, "value": score.estimate.value, "scale": score.scale, "points": points, **design}


HANDLERS: dict[str, Callable[[Node, Path, Path], None]] = {
    "prepare": _prepare, "pretrain": _pretrain, "finetune": _finetune, "baseline": _baseline, "overlap": _overlap,
    "probe": _run_probe,
}  # fmt: skip


def _filled(model: Any, node: Node) -> Any:
    return config.fill(model, node.recipe, where=node.id)


def _publish_result(
    node: Node, output: Path, result: MethodResult, task: Task, test: Examples, untrained: bool,
    curve: Path | None = None,
) -> None:  # fmt: skip
    """Publish the result of a cell with the gold values, so that a study's folder needs no other file.

    That of an untrained system has hashes of the test rows, by which its independent test sets are counted.
    """
    _require_unchanged(node)
    rows = {"rows": hash_rows(test)} if untrained else {}
    _publish(node, output, {**result.to_dict(), "metric": task.metrics()[0], "gold": list(test.labels), **rows}, curve)


def _require_unchanged(node: Node) -> None:
    """Raise if a data file no longer has the content that the address of the cell names."""
    data = LabeledData.model_validate(node.recipe["data"])
    for split in SPLITS:
        source = data.source(split)
        if source is not None:
            located = locate(source)
            _require_content(located, located.sha256, node.inputs.get(split))


def _require_content(name: object, content: Callable[[], str], known: str | None) -> None:
    """Raise if the hash of a file does not begin with the one that a cell has of it; without one, nothing is hashed."""
    if known is not None and not content().startswith(known):
        raise DataError(
            f"{name} was changed after the study began",
            do="Run the study again: the changed file belongs to other cells",
        )


def _publish(node: Node, output: Path, values: dict[str, Any], curve: Path | None = None) -> None:
    files = {} if curve is None else {CURVE: curve}
    results.write(cell_dir(output, node.id), values, _CELL, files, node=node.to_dict())
