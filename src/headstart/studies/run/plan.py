"""The price of a study before anything is spent: its cells, what they share, and a forecast for each kind of them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from headstart.core import config, registry
from headstart.core.contracts import Task
from headstart.core.data import Examples
from headstart.core.errors import HeadstartError
from headstart.evaluation.cost import CostConfig, PriceTag, forecast_tag
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.finetune.run import read_data
from headstart.stages.plan import forecast
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.studies.definition import Study
from headstart.studies.graph import Graph, Node, is_finished
from headstart.studies.run import engine as study_engine
from headstart.studies.run.executors import local_workers
from headstart.studies.run.expand import build
from headstart.training.budget import Budget

_NOT_FORESEEN = "baseline", "overlap", "prepare"
_TOKENS_A_WORD, _SPECIAL_TOKENS = 1.3, 3
_ROWS_READ = 256
_UNKNOWN_COST = "not foreseen"


@dataclass
class PlanItem:
    """Cells of one recipe but for seed and number of labels, and what those that are not there will cost."""

    what: str
    cells: int = 0
    todo: int = 0
    tag: PriceTag | None = None
    note: str = ""


@dataclass
class StudyPlan:
    """What a study will do."""

    study: Study
    graph: Graph
    parts: list[PlanItem] = field(default_factory=list)

    @property
    def tag(self) -> PriceTag | None:
        """Return the forecast of all parts together."""
        known = [part.tag for part in self.parts if part.tag is not None]
        return sum(known[1:], known[0]) if known else None

    @property
    def unforeseen(self) -> int:
        """Return the number of cells whose cost could not be found out."""
        return sum(part.todo for part in self.parts if part.note.startswith(_UNKNOWN_COST))


def run(study: Study, quiet: bool = False) -> StudyPlan:
    """List the cells of a study and forecast those that are missing, from a few steps timed on this machine.

    A grid of many methods takes minutes to time, so each is named on stderr as its turn comes, unless `quiet`.
    """
    torch.set_num_threads(study.execution.threads)
    made = StudyPlan(study, build(study))
    groups: dict[str, list[Node]] = {}
    for node in made.graph.nodes.values():
        groups.setdefault(_group(node), []).append(node)
    speeds: dict[str, dict[str, Any]] = {}
    for number, nodes in enumerate(groups.values(), start=1):
        there = [node for node in nodes if is_finished(study.output, node.id)]
        todo = [node for node in nodes if node not in there]
        part = PlanItem(_name(nodes[0], made.graph), len(nodes), len(todo))
        made.parts.append(part)
        if nodes[0].kind in _NOT_FORESEEN:
            part.note = "seconds each" if nodes[0].kind == "baseline" else "reads the corpus once"
        elif todo:
            if not quiet:
                print(f"study plan: {number} of {len(groups)}, {part.what}", file=sys.stderr, flush=True)
            try:
                if nodes[0].kind == "pretrain":
                    part.tag = _pretraining(todo, speeds)
                else:
                    part.tag = _finetuning(todo, _measured(study.output, there), speeds)
            except HeadstartError as error:
                part.note = f"{_UNKNOWN_COST}: {error}"
    return made


def render(made: StudyPlan) -> str:
    """Say the plan in lines."""
    study, graph = made.study, made.graph
    kinds = Counter(node.kind for node in graph.nodes.values())
    there = sum(is_finished(study.output, name) for name in graph.nodes)
    systems, contexts = len({cell.system for cell in graph.cells}), len({cell.context for cell in graph.cells})
    lines = [
        study.question,
        f"{'table':<12}{len(graph.cells):,} places: {systems} systems, {contexts} contexts, {study.seeds} seeds",
        f"{'to compute':<12}{len(graph.nodes):,} cells ({', '.join(f'{n:,} {kind}' for kind, n in kinds.items())}); "
        f"{there:,} are there",
    ]
    for path, count in graph.absent().most_common():
        lines.append(f"{'not there':<12}{path}, which {count:,} cells read")
    for node, count in graph.shared():
        lines.append(f"{'shared':<12}{_name(node, graph)} ({node.id}) serves {count:,} cells")
    twice = len(graph.cells) - len({cell.node for cell in graph.cells})
    if twice:
        lines.append(f"{'shared':<12}{twice:,} places of the table are filled by cells of other places")
    for part in made.parts:
        told = part.note or ("there" if part.tag is None else part.tag.sentence())
        lines.append(f"  {part.todo:>5,} of {part.cells:<5,} {part.what}: {told}")
    if made.tag is None:
        told = f"none: {made.unforeseen:,} cells are {_UNKNOWN_COST}" if made.unforeseen else "nothing is left to train"
        return "\n".join([*lines, f"{'forecast':<12}{told}"])
    uncounted = f", nor {made.unforeseen:,} cells that are {_UNKNOWN_COST}" if made.unforeseen else ""
    lines.append(f"{'forecast':<12}{made.tag.sentence()}, baselines not counted{uncounted}")
    workers = local_workers(study.execution)
    lines.append(f"{'':<12}about {made.tag.seconds / workers / 3600:.1f} h with {workers} workers")
    if study.budget_hours is not None:
        spent = study_engine.seconds_spent(graph, study.output) / 3600
        short = spent + made.tag.seconds / 3600 - study.budget_hours
        told = "is enough" if short <= 0 else f"is {short:.1f} h too little"
        lines.append(f"{'budget':<12}{study.budget_hours:g} h of work, {spent:.1f} h of it spent, {told}")
    lines += [f"{'assumed':<12}{key}: {value}" for key, value in made.tag.assumptions.items() if key != "speed"]
    return "\n".join(lines)


def _group(node: Node) -> str:
    recipe = {key: value for key, value in node.recipe.items() if key != "seed"}
    if node.kind in ("finetune", "baseline"):
        recipe["data"] = {key: value for key, value in recipe["data"].items() if key != "train_rows"}
    return config.fingerprint({"kind": node.kind, "recipe": recipe})


def _name(node: Node, graph: Graph) -> str:
    recipe = node.recipe
    if node.kind == "finetune":
        origin = _name(graph.nodes[node.parents[0]], graph) if node.parents else _short(recipe["model"])
        return f"{recipe['adaptation']['name']} on {_short(recipe['data']['test'])} from {origin}"
    if node.kind == "baseline":
        return f"{recipe['baseline']} on {_short(recipe['data']['test'])}"
    if node.kind == "overlap":
        return f"overlap of {_short(recipe['test'])} with the corpus"
    return f"{node.kind} {recipe['objective']['name']}"


def _short(path: str) -> str:
    return "/".join(str(path).split("/")[-2:])


def _pretraining(nodes: list[Node], speeds: dict[str, dict[str, Any]]) -> PriceTag:
    found = forecast.run(config.fill(PretrainRecipe, {**nodes[0].recipe, "output": "cell"}))
    for node in nodes:
        speeds[node.id] = found
    tag = PriceTag.from_dict(found["forecast"])
    return sum([tag] * (len(nodes) - 1), tag)


def _finetuning(
    nodes: list[Node], measured: Mapping[int | None, PriceTag], speeds: Mapping[str, Mapping[str, Any]]
) -> PriceTag:
    """Forecast cells that differ by seed and labels: a seed costs what its siblings did, the others are timed.

    Where labels decide how long a cell trains, the fewest and the most of them are timed, and the rest lie between.
    """
    recipe, tags = nodes[0].recipe, dict(measured)
    missing = list(dict.fromkeys(_labels(node) for node in nodes if _labels(node) not in tags))
    parent = nodes[0].parents[0] if nodes[0].parents else None
    if parent is not None and parent in speeds:
        tags |= {count: _by_speed(recipe, count, speeds[parent]) for count in missing}
    elif _budget(recipe).unit == "epochs" and len(missing) > 1:
        there = _rows_to_learn_from(recipe)
        rows = {count: there if count is None else min(count, there) for count in missing}
        ends = {
            rows[count]: _timed(recipe, count)
            for count in (min(missing, key=rows.__getitem__), max(missing, key=rows.__getitem__))
        }
        tags |= {count: _between(ends, rows[count]) for count in missing}
    elif missing:
        timed = _timed(recipe, missing[-1])
        tags |= dict.fromkeys(missing, timed)
    each = [tags[_labels(node)] for node in nodes]
    return sum(each[1:], each[0])


def _measured(output: Path, finished: list[Node]) -> dict[int | None, PriceTag]:
    """Return what a cell of each number of labels cost, from those that are there."""
    paid = {_labels(node): study_engine.price(output, node.id) for node in finished}
    return {labels: PriceTag.from_dict(cost) for labels, cost in paid.items() if cost}


def _labels(node: Node) -> int | None:
    labels: int | None = node.recipe["data"]["train_rows"]
    return labels


def _rows_to_learn_from(recipe: Mapping[str, Any]) -> int:
    filled = config.fill(FinetuneRecipe, {**recipe, "output": "cell"})
    return len(read_data(filled.data, registry.build("tasks", filled.task)).train)


def _budget(recipe: Mapping[str, Any]) -> Budget:
    return Budget.parse(recipe["adaptation"].get("budget") or recipe["training"]["budget"])


def _timed(recipe: Mapping[str, Any], labels: int | None) -> PriceTag:
    asked = {**recipe, "data": {**recipe["data"], "train_rows": labels}}
    return PriceTag.from_dict(forecast.run(config.fill(FinetuneRecipe, asked))["forecast"])


def _between(ends: Mapping[int, PriceTag], labels: int) -> PriceTag:
    low, high = min(ends), max(ends)
    share = 0.0 if low == high else (labels - low) / (high - low)
    one, other = ends[low], ends[high]

    def mixed(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else (1 - share) * a + share * b

    return PriceTag(
        round(mixed(one.tokens, other.tokens) or 0), mixed(one.flops, other.flops) or 0.0,
        mixed(one.seconds, other.seconds) or 0.0, None, mixed(one.kwh, other.kwh), mixed(one.co2e_kg, other.co2e_kg),
        mixed(one.money, other.money) or 0.0, one.currency, one.assumptions,
    )  # fmt: skip


def _by_speed(recipe: Mapping[str, Any], labels: int | None, known: Mapping[str, Any]) -> PriceTag:
    """Forecast fine-tuning of a checkpoint that is not made yet, by the words of its texts and pre-training's speed."""
    filled = config.fill(FinetuneRecipe, {**recipe, "output": "cell"})
    task: Task = registry.build("tasks", filled.task)
    splits = read_data(filled.data, task)
    settings = filled.training
    per_token, speed = known["size"]["FLOPs per token"], known["tokens_per_second"]
    length = min(settings.max_length, _tokens_a_row(splits.train))
    rows = len(splits.train) if labels is None else min(labels, len(splits.train))
    tokens = forecast.tokens_of(_budget(recipe), speed, per_token, settings.batch_size * length, rows * length)
    # A look at held-out rows goes forwards alone, a third of a step.
    looked_at = (len(splits.validation) * settings.eval_count + len(splits.test)) * length / 3
    flops = (tokens + looked_at) * per_token
    tag = forecast_tag(flops, speed * per_token, CostConfig(**recipe["cost"]), tokens=round(tokens))
    tag.assumptions["fine-tuning"] = f"{_TOKENS_A_WORD} tokens a word, at the speed of pre-training"
    return tag


def _tokens_a_row(rows: Examples) -> float:
    """Guess the tokens of a row from the words of the first ones: there is no tokenizer yet."""
    some = rows.take(range(min(_ROWS_READ, len(rows))))
    words = sum(
        len(value.split() if isinstance(value, str) else value)
        for column in some.columns.values()
        for value in column
        if isinstance(value, str | list)
    )
    return _TOKENS_A_WORD * words / max(1, len(some)) + _SPECIAL_TOKENS
