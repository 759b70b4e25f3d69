"""Plan a study before it runs: its cells, the work they share, and a forecast of time, energy and money."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from headstart.adaptation.zero_shot import ZeroShot
from headstart.core import config, registry
from headstart.core.contracts import Task
from headstart.core.data import Examples
from headstart.core.errors import HeadstartError
from headstart.core.log import logger
from headstart.evaluation.cost import CostConfig, PriceTag, forecast_tag
from headstart.stages.finetune.data import read_data
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.plan import forecast
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.studies.definition import Study
from headstart.studies.graph import Graph, Node, is_finished
from headstart.studies.run import engine as study_engine
from headstart.studies.run.executors import local_workers
from headstart.studies.run.expand import build
from headstart.training.budget import Budget

_NOT_TIMED = {
    "baseline": "seconds each", "overlap": "reads the corpus once", "prepare": "reads the corpus once",
    "probe": "seconds to minutes each",
}  # fmt: skip
"""Kinds of cells without a forecast, and the note that replaces it."""
_TOKENS_PER_WORD, _SPECIAL_TOKENS = 1.3, 3
_SAMPLED_ROWS = 256
_NO_FORECAST = "no forecast"


@dataclass
class PlanItem:
    """Cells that differ only in seed and number of training rows, and the forecast for the unfinished ones."""

    name: str
    cells: int = 0
    todo: int = 0
    tag: PriceTag | None = None
    note: str = ""


@dataclass
class StudyPlan:
    """The cells of a study and their forecast."""

    study: Study
    graph: Graph
    items: list[PlanItem] = field(default_factory=list)

    @property
    def tag(self) -> PriceTag | None:
        """Return the forecast of all items together."""
        tags = [item.tag for item in self.items if item.tag is not None]
        return sum(tags[1:], tags[0]) if tags else None

    @property
    def without_forecast(self) -> int:
        """Return the number of unfinished cells whose forecast failed."""
        return sum(item.todo for item in self.items if item.note.startswith(_NO_FORECAST))


def run(study: Study, quiet: bool = False) -> StudyPlan:
    """Return the cells of a study, with a forecast for the missing ones from a few steps timed on this machine.

    Timing takes minutes for a grid of many methods, so each method is logged before it is timed, unless `quiet`.
    """
    torch.set_num_threads(study.execution.threads)
    plan = StudyPlan(study, build(study))
    groups: dict[str, list[Node]] = {}
    keys: dict[str, str] = {}
    for node in plan.graph.nodes.values():
        keys[node.id] = _group(node, keys)
        groups.setdefault(keys[node.id], []).append(node)
    speeds: dict[str, dict[str, Any]] = {}
    for number, nodes in enumerate(groups.values(), start=1):
        kind = nodes[0].kind
        finished = [node for node in nodes if is_finished(study.output, node.id)]
        todo = [node for node in nodes if node not in finished]
        item = PlanItem(_name(nodes[0], plan.graph), len(nodes), len(todo))
        plan.items.append(item)
        if kind in _NOT_TIMED:
            item.note = _NOT_TIMED[kind]
        elif kind == "finetune" and not _trains(nodes[0]):
            item.note = "trains nothing, seconds to minutes each"
        elif todo:
            if not quiet:
                logger.info(f"study plan: {number} of {len(groups)}, {item.name}")
            try:
                if kind == "pretrain":
                    item.tag = _forecast_pretraining(todo, speeds)
                else:
                    item.tag = _forecast_finetuning(todo, _measured(study.output, finished), speeds)
            except HeadstartError as error:
                item.note = f"{_NO_FORECAST}: {error}"
    return plan


def render(plan: StudyPlan) -> str:
    """Return the plan as lines of text."""
    return "\n".join([*_cell_lines(plan), *_forecast_lines(plan)])


def _cell_lines(plan: StudyPlan) -> list[str]:
    study, graph = plan.study, plan.graph
    kinds = Counter(node.kind for node in graph.nodes.values())
    finished = sum(is_finished(study.output, name) for name in graph.nodes)
    systems, contexts = ({getattr(cell, name) for cell in graph.cells} for name in ("system", "context"))
    lines = [
        study.question,
        f"{'table':<12}{_count(len(graph.cells), 'entry', 'entries')}: {_count(len(systems), 'system')}, "
        f"{_count(len(contexts), 'context')}, {_count(study.seeds, 'seed')}",
        f"{'to compute':<12}{_count(len(graph.nodes), 'cell')} "
        f"({', '.join(f'{count:,} {kind}' for kind, count in kinds.items())}); {finished:,} finished",
    ]
    for path, count in graph.absent().most_common():
        lines.append(f"{'missing':<12}{path}, read by {_count(count, 'cell')}")
    for node, count in graph.shared():
        lines.append(f"{'shared':<12}{_name(node, graph)} ({node.id}) serves {_count(count, 'cell')}")
    repeated = len(graph.cells) - len({cell.node for cell in graph.cells})
    if repeated:
        lines.append(f"{'shared':<12}{repeated:,} entries of the table use the cell of another entry")
    for item in plan.items:
        text = item.note or ("finished" if item.tag is None else item.tag.sentence())
        lines.append(f"  {item.todo:>5,} of {item.cells:<5,} {item.name}: {text}")
    return lines


def _forecast_lines(plan: StudyPlan) -> list[str]:
    study, tag = plan.study, plan.tag
    uncounted = f"{_count(plan.without_forecast, 'cell')} without a forecast"
    if tag is None:
        return [f"{'forecast':<12}" + (f"none: {uncounted}" if plan.without_forecast else "nothing is left to train")]
    excluded = f" and {uncounted}" if plan.without_forecast else ""
    workers = local_workers(study.execution)
    lines = [
        f"{'forecast':<12}{tag.sentence()}, excluding baselines{excluded}",
        f"{'':<12}about {tag.seconds / workers / 3600:.1f} h with {_count(workers, 'worker')}",
    ]
    if study.budget_hours is not None:
        spent = study_engine.seconds_spent(plan.graph, study.output) / 3600
        missing = spent + tag.seconds / 3600 - study.budget_hours
        text = "enough" if missing <= 0 else f"{missing:.1f} h too little"
        lines.append(f"{'budget':<12}{study.budget_hours:g} h, {spent:.1f} h of it spent: {text}")
    lines += [f"{'assumed':<12}{key}: {value}" for key, value in tag.assumptions.items() if key != "speed"]
    return lines


def _count(number: int, singular: str, plural: str = "") -> str:
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def _group(node: Node, keys: Mapping[str, str]) -> str:
    """Return a key that cells of one kind and recipe share, whatever their seed and number of training rows.

    `keys` has those of the cells that it reads. A recipe names these by their folders, which differ between seeds.
    """
    recipe = {key: value for key, value in node.recipe.items() if key != "seed"}
    if node.kind in ("finetune", "baseline"):
        recipe["data"] = {key: value for key, value in recipe["data"].items() if key != "train_rows"}
    if node.parents and node.kind == "pretrain":
        recipe["corpus"] = {key: value for key, value in recipe["corpus"].items() if key != "prepared"}
    elif node.parents:
        del recipe["model"]
    parents = [keys[parent] for parent in node.parents]
    return config.fingerprint({"kind": node.kind, "recipe": recipe, "parents": parents})


def _trains(node: Node) -> bool:
    """Return False for a cell that only evaluates its model."""
    recipe = node.recipe
    learns = registry.resolve("tasks", recipe["task"]["kind"]).learns
    return bool(learns and registry.resolve("adaptations", recipe["adaptation"]["name"]) is not ZeroShot)


def _name(node: Node, graph: Graph) -> str:
    recipe = node.recipe
    if node.kind == "finetune":
        return f"{recipe['adaptation']['name']} on {_short(recipe['data']['test'])} from {_start(node, graph)}"
    if node.kind == "probe":
        network = "" if recipe["untrained_seed"] is None else "the untrained network of "
        return f"probe {recipe['probe']} of {network}{_start(node, graph)}"
    if node.kind == "baseline":
        return f"{recipe['baseline']} on {_short(recipe['data']['test'])}"
    if node.kind == "overlap":
        return f"overlap of {_short(recipe['test'])} with the corpus"
    return f"{node.kind} {recipe['objective']['name']}"


def _start(node: Node, graph: Graph) -> str:
    """Return the name of the model that a cell starts from: a pre-training of the study, or a checkpoint."""
    return _name(graph.nodes[node.parents[0]], graph) if node.parents else _short(node.recipe["model"])


def _short(path: str) -> str:
    return "/".join(str(path).split("/")[-2:])


def _forecast_pretraining(nodes: list[Node], speeds: dict[str, dict[str, Any]]) -> PriceTag:
    """Forecast pre-trainings of one recipe, and keep the measured speed for the fine-tunings that start from them."""
    timed = forecast.run(config.fill(PretrainRecipe, {**nodes[0].recipe, "output": "cell"}))
    for node in nodes:
        speeds[node.id] = timed
    tag = PriceTag.from_dict(timed["forecast"])
    return sum([tag] * (len(nodes) - 1), tag)


def _forecast_finetuning(
    nodes: list[Node], measured: Mapping[int | None, PriceTag], speeds: Mapping[str, Mapping[str, Any]]
) -> PriceTag:
    """Forecast cells that differ in seed and training rows; `measured` has the cost of finished ones by training rows.

    Where the number of rows decides how long a cell trains, the smallest and the largest are timed, and the others are
    interpolated.
    """
    recipe, tags = nodes[0].recipe, dict(measured)
    missing = list(dict.fromkeys(_train_rows(node) for node in nodes if _train_rows(node) not in tags))
    parent = nodes[0].parents[0] if nodes[0].parents else None
    if parent is not None and parent in speeds:
        tags |= {count: _forecast_by_speed(recipe, count, speeds[parent]) for count in missing}
    elif _budget(recipe).unit == "epochs" and len(missing) > 1:
        available = _available_rows(recipe)
        rows = {count: available if count is None else min(count, available) for count in missing}
        extremes = (min(missing, key=rows.__getitem__), max(missing, key=rows.__getitem__))
        ends = {rows[count]: _timed(recipe, count) for count in extremes}
        tags |= {count: _interpolate(ends, rows[count]) for count in missing}
    elif missing:
        tags |= dict.fromkeys(missing, _timed(recipe, missing[-1]))
    each = [tags[_train_rows(node)] for node in nodes]
    return sum(each[1:], each[0])


def _measured(output: Path, finished: list[Node]) -> dict[int | None, PriceTag]:
    """Return the cost of a finished cell for each number of training rows."""
    costs = {_train_rows(node): study_engine.price(output, node.id) for node in finished}
    return {rows: PriceTag.from_dict(cost) for rows, cost in costs.items() if cost}


def _train_rows(node: Node) -> int | None:
    rows: int | None = node.recipe["data"]["train_rows"]
    return rows


def _available_rows(recipe: Mapping[str, Any]) -> int:
    filled = config.fill(FinetuneRecipe, {**recipe, "output": "cell"})
    return len(read_data(filled.data, registry.build("tasks", filled.task)).train)


def _budget(recipe: Mapping[str, Any]) -> Budget:
    return Budget.parse(recipe["adaptation"].get("budget") or recipe["training"]["budget"])


def _timed(recipe: Mapping[str, Any], train_rows: int | None) -> PriceTag:
    changed = {**recipe, "data": {**recipe["data"], "train_rows": train_rows}}
    return PriceTag.from_dict(forecast.run(config.fill(FinetuneRecipe, changed))["forecast"])


def _interpolate(ends: Mapping[int, PriceTag], rows: int) -> PriceTag:
    low, high = min(ends), max(ends)
    fraction = 0.0 if low == high else (rows - low) / (high - low)
    first, last = ends[low], ends[high]

    def between(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else (1 - fraction) * a + fraction * b

    return PriceTag(
        round(between(first.tokens, last.tokens) or 0), between(first.flops, last.flops) or 0.0,
        between(first.seconds, last.seconds) or 0.0, None, between(first.kwh, last.kwh),
        between(first.co2e_kg, last.co2e_kg), between(first.money, last.money) or 0.0, first.currency,
        first.assumptions,
    )  # fmt: skip


def _forecast_by_speed(recipe: Mapping[str, Any], train_rows: int | None, timed: Mapping[str, Any]) -> PriceTag:
    """Forecast the fine-tuning of a checkpoint that does not exist yet, from word counts and pre-training speed."""
    filled = config.fill(FinetuneRecipe, {**recipe, "output": "cell"})
    task: Task = registry.build("tasks", filled.task)
    splits = read_data(filled.data, task)
    training = filled.training
    flops_per_token, speed = timed["size"]["FLOPs per token"], timed["tokens_per_second"]
    length = min(training.max_length, _tokens_per_row(splits.train))
    rows = len(splits.train) if train_rows is None else min(train_rows, len(splits.train))
    tokens = forecast.tokens_of(_budget(recipe), speed, flops_per_token, training.batch_size * length, rows * length)
    # Evaluation makes only forward passes: a third of the FLOPs of a training step.
    evaluated = (len(splits.validation) * training.eval_count + len(splits.test)) * length / 3
    flops = (tokens + evaluated) * flops_per_token
    tag = forecast_tag(flops, speed * flops_per_token, CostConfig(**recipe["cost"]), tokens=round(tokens))
    tag.assumptions["fine-tuning"] = f"{_TOKENS_PER_WORD} tokens per word, at the speed of pre-training"
    return tag


def _tokens_per_row(rows: Examples) -> float:
    """Estimate the tokens of a row from the words of the first rows, because no tokenizer exists yet."""
    first = rows.take(range(min(_SAMPLED_ROWS, len(rows))))
    words = sum(
        len(value.split() if isinstance(value, str) else value)
        for column in first.columns.values()
        for value in column
        if isinstance(value, str | list)
    )
    return _TOKENS_PER_WORD * words / max(1, len(first)) + _SPECIAL_TOKENS
