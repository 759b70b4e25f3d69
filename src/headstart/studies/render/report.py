"""The report of a study: curves, tables, verdicts, recipes and versions in one page, and the tables in every form."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import yaml

from headstart.core import artifact, config
from headstart.evaluation.cost import PriceTag
from headstart.studies.graph import Node, home, is_finished
from headstart.studies.grid import Context
from headstart.studies.judge import curve_tables, curves
from headstart.studies.judge.results import CellScore
from headstart.studies.judge.tables import FORGOTTEN, FORGOTTEN_IN, Table
from headstart.studies.render import charts, formats, page
from headstart.studies.render.page import Report
from headstart.studies.run import engine as study_engine
from headstart.studies.run.jobs import CURVE
from headstart.studies.study import DEFINITION, TABLES, StudyState

PAGE, PLAIN_PAGE = "report.html", "report.md"
_MOST_RECIPES = 12
_LEAST_DOTS = 3


def run(standing: StudyState, target: Path | None = None) -> Path:
    """Write the page, as HTML and in short as Markdown, and the tables; returns the page."""
    study = standing.study
    folder = target or study.output
    made = [*standing.tables(), *filter(None, [curve_tables.crossings(study, standing.results)])]
    sheets = curve_tables.sheets(study, standing.results)
    for table in [*made, *sheets]:
        formats.write_all(table, folder / TABLES)
    overtaking = _overtaking(standing)
    figures = [
        *((one.title, [page.table(one)]) for one in overtaking),
        ("Scores", [*_curves(standing), *(page.table(sheet, sheet.title) for sheet in sheets)]),
        ("Score against cost", [*_fronts(standing)]),
        ("Forgetting against gain", [*_forgetting(standing)]),
        ("Training", [*_training(standing)]),
    ]
    report = Report(
        study.question, standing.verdicts, _summary(standing), figures, made,
        _recipes(standing), artifact.versions(),
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    artifact.write_whole(folder / PAGE, page.render(report))
    brief = formats.markdown_page(study.question, standing.verdicts, report.summary, [*overtaking, *sheets])
    artifact.write_whole(folder / PLAIN_PAGE, brief)
    return folder / PAGE


def _place(standing: StudyState) -> Callable[[str], int]:
    """Give every system its place among them, and so its looks, the same in every picture."""
    places = {system.name: place for place, system in enumerate(standing.results.systems)}
    return lambda name: places.get(name, len(places))


def _summary(standing: StudyState) -> list[str]:
    graph, output = standing.graph, standing.study.output
    done = [name for name in graph.nodes if is_finished(output, name)]
    said = [f"{len(done):,} of {len(graph.nodes):,} cells are finished, {standing.study.seeds} seeds."]
    tags = [PriceTag.from_dict(tag) for name in done if (tag := study_engine.price(output, name)).get("flops")]
    if tags:
        said.append(f"What was trained cost {reduce(add, tags).sentence()}.")
    failed = [hole for hole in standing.results.holes if hole.reason]
    said += [
        f"Hole: {hole.cell.system.name} in {'/'.join(hole.cell.context) or 'its context'}, seed {hole.cell.seed}: "
        f"{hole.reason}"
        for hole in failed
    ]
    reasons = {(s.name, why) for (s, _), why in standing.results.left_out.items()}
    said += [f"{name} is left out: {why}." for name, why in sorted(reasons)]
    return said


def _curves(standing: StudyState) -> list[str]:
    """Return a picture for each slice of each axis of numbers."""
    study, results, pictures = standing.study, standing.results, []
    for axis in curves.numeric_axes(study):
        for slice_, contexts in curves.slices(study, results, axis).items():
            found = curves.along(study, results, axis, contexts)
            if found:
                title = ", ".join(slice_) or "Scores"
                pictures.append(charts.lines(title, axis, _metric(standing, contexts[0]), found, _place(standing)))
    return _with_legend(standing, pictures)


def _metric(standing: StudyState, context: Context) -> str:
    for system in standing.results.systems:
        for outcome in standing.results.of(system, context).values():
            return outcome.metric
    return "score"


def _fronts(standing: StudyState) -> list[str]:
    """Return score against FLOPs and against seconds for each context, the last level of each axis of numbers alone."""
    pictures = []
    place = _place(standing)
    for context in _last(standing):
        for unit, cost in _COSTS.items():
            placed = curves.against_cost(standing.results, context, cost, unit)
            if len(placed) >= _LEAST_DOTS:
                title = f"{', '.join(context) or 'Score'}: {unit}"
                pictures.append(charts.front(title, unit, _metric(standing, context), placed, place))
    return _with_legend(standing, pictures)


def _with_legend(standing: StudyState, pictures: list[str]) -> list[str]:
    names = [(system.name, system.baseline is not None) for system in standing.results.systems]
    if not pictures:
        return []
    return [charts.legend(names, _place(standing)), f'<div class="figures">{"".join(pictures)}</div>']


_COSTS: dict[str, Callable[[CellScore], float | None]] = {
    "training FLOPs": lambda outcome: outcome.cost.get("flops"),
    "seconds": lambda outcome: outcome.cost.get("seconds"),
}


def _last(standing: StudyState) -> list[Context]:
    """Return the contexts at the end of every axis of numbers."""
    study = standing.study
    axes = [axis for axis in study.axes if axis not in study.compare]
    ends = {axis: list(study.axes[axis])[-1] for axis in curves.numeric_axes(study)}
    return [
        context
        for context in standing.results.contexts
        if all(ends.get(axis, level) == level for axis, level in zip(axes, context, strict=True))
    ]


def _forgetting(standing: StudyState) -> list[str]:
    """Return what each system forgot against what it gained over the reference, a picture for each measure of it."""
    pictures = []
    table = standing.scores
    names = [column.name for column in table.columns]
    gain, lost, probe = (names.index(name) for name in (_lead(standing), FORGOTTEN, FORGOTTEN_IN))
    axes = len(names[: names.index("system")])
    for context in standing.results.contexts:
        found: dict[str, list[tuple[str, float, float]]] = {}
        for row in table.rows:
            gained = 0.0 if row[axes] == standing.study.reference else row[gain]
            if tuple(row[:axes]) == context and None not in (gained, row[lost]):
                found.setdefault(row[probe], []).append((row[axes], row[lost], gained))
        for what, rows in found.items():
            title = ", ".join(context) or "Forgetting against gain"
            placed = curves.on_front(rows, lambda name, lost, gained: f"{name}: {gained:+.1f}, forgot {lost:+.3f}")
            pictures.append(charts.front(title, f"forgotten in {what}", names[gain], placed, _place(standing)))
    return _with_legend(standing, pictures)


def _lead(standing: StudyState) -> str:
    return f"lead over {standing.study.reference}"


def _training(standing: StudyState) -> list[str]:
    """Return the loss over tokens, FLOPs and kWh: of each pre-training, and of each system's first seed at the end."""
    found: list[tuple[str, list[dict[str, Any]], dict[str, Any]]] = []
    output = standing.study.output
    for node in standing.graph.nodes.values():
        if node.kind == "pretrain" and is_finished(output, node.id):
            logged = _logged(home(output, node.id) / "logs" / "metrics.jsonl")
            found.append((_pretrained_for(standing, node), logged, study_engine.price(output, node.id)))
    parts = [_traces(standing, "Pre-training", found)] if found else []
    for context in _last(standing):
        rows = []
        for system in standing.results.systems:
            runs = standing.results.of(system, context)
            if runs:
                first = runs[min(runs)]
                logged = _logged(home(output, first.node) / CURVE)
                if logged:
                    rows.append((system.name, logged, dict(first.cost)))
        if rows:
            parts.append(_traces(standing, ", ".join(context) or "Fine-tuning", rows))
    return parts


def _pretrained_for(standing: StudyState, node: Node) -> str:
    """Name a pre-training by the systems that start from it, or by what their names share, or else by its objective."""
    nodes = standing.graph.nodes
    cells = [cell for cell in standing.graph.cells if node.id in nodes[cell.node].parents]
    users = {cell.system for cell in cells if cell.system.baseline is None}
    if len(users) == 1:
        return users.pop().name
    shared = (
        [level for level in next(iter(users)).levels if all(level in user.levels for user in users)] if users else []
    )
    return "/".join(shared) or f"{node.recipe['objective']['name']} ({node.id.rpartition('-')[2][:4]})"


def _traces(standing: StudyState, title: str, rows: list[tuple[str, list[dict[str, Any]], dict[str, Any]]]) -> str:
    pictures = []
    known = [system.name for system in standing.results.systems]
    places = {name: place for place, name in enumerate(dict.fromkeys([*known, *(name for name, _, _ in rows)]))}
    for unit, key in (("tokens", "tokens"), ("FLOPs", "flops"), ("kWh", "kwh")):
        drawn = []
        for name, logged, cost in rows:
            whole = cost.get(key) or 0.0
            last = logged[-1]["tokens"] or 1
            dots = [(line["tokens"] / last * whole, line["loss"]) for line in logged]
            if whole and len(dots) > 1:
                drawn.append((name, dots))
        if drawn:
            pictures.append(charts.traces(f"{title}: loss over {unit}", unit, "loss", drawn, places.__getitem__))
    if not pictures:
        return ""
    marks = charts.legend([(name, False) for name in dict.fromkeys(name for name, _, _ in rows)], places.__getitem__)
    return f'{marks}<div class="figures">{"".join(pictures)}</div>'


def _logged(path: Path) -> list[dict[str, Any]]:
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError):
        return []
    return [line for line in lines if "loss" in line and "tokens" in line]


def _overtaking(standing: StudyState) -> list[Table]:
    """Return a table for each axis of numbers: from where on each system is above the reference."""
    study, results = standing.study, standing.results
    found = [curve_tables.overtaking(study, results, axis) for axis in curves.numeric_axes(study)]
    return [table for table in found if table is not None]


def _recipes(standing: StudyState) -> dict[str, str]:
    """Return the study and one filled recipe of each system."""
    recipes = {DEFINITION: config.to_yaml(standing.study)}
    shown: dict[str, Node] = {}
    for cell in standing.graph.cells:
        shown.setdefault(cell.system.name, standing.graph.nodes[cell.node])
    for node in standing.graph.nodes.values():
        if node.kind == "pretrain":
            shown.setdefault(node.id, node)
    for name, node in list(shown.items())[:_MOST_RECIPES]:
        recipes[f"{name} ({node.id})"] = yaml.safe_dump(node.recipe, sort_keys=False, allow_unicode=True)
    return recipes
