"""The pictures of a study's report: scores along an axis, score against cost, forgetting, and training losses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from headstart.core.pages import charts
from headstart.core.pages.charts import ChartLine, ChartPoint, ParetoPoint
from headstart.core.pages.svg import Marker
from headstart.studies.graph import Node, cell_dir, is_finished
from headstart.studies.grid import Context
from headstart.studies.judge import curves
from headstart.studies.judge.curves import CostPoint, Curve
from headstart.studies.judge.results import CellScore
from headstart.studies.judge.tables import FORGOTTEN, FORGOTTEN_IN
from headstart.studies.run import engine as study_engine
from headstart.studies.run.jobs import CURVE
from headstart.studies.study import StudyState

_FEWEST_POINTS = 3
_COSTS: dict[str, Callable[[CellScore], float | None]] = {
    "training FLOPs": lambda score: score.cost.get("flops"),
    "seconds": lambda score: score.cost.get("seconds"),
}
_TRAINING_UNITS = {"tokens": "tokens", "FLOPs": "flops", "kWh": "kwh"}
"""What the x axis of a loss curve counts → the key of a cost that has the total."""


@dataclass(frozen=True)
class Trace:
    """The training log of one run."""

    name: str
    log: Sequence[Mapping[str, Any]]
    cost: Mapping[str, Any]

    def line(self, marker: Marker, unit: str) -> ChartLine | None:
        """Return the loss over a unit of cost; None where the run has no such cost or too short a log."""
        total = self.cost.get(_TRAINING_UNITS[unit]) or 0.0
        if not total or len(self.log) < 2:
            return None
        # The log counts tokens; other costs grow in proportion to them.
        last_tokens = self.log[-1]["tokens"] or 1
        pairs = [(entry["tokens"] / last_tokens * total, entry["loss"]) for entry in self.log]
        x, y = pairs[-1]
        end = ChartPoint(x, y, f"{self.name}: loss {y:.3f} after {x:.3g} {unit}")
        return ChartLine(self.name, marker, [*(ChartPoint(*pair) for pair in pairs[:-1]), end])


class Figures:
    """Draws the pictures of one study; a system has the same marker in all of them."""

    def __init__(self, state: StudyState) -> None:
        """Assign the markers."""
        self.state = state
        self._markers: dict[str, Marker] = {}
        for system in state.results.systems:
            self._marker(system.name)

    def _marker(self, name: str) -> Marker:
        return self._markers.setdefault(name, Marker.of(len(self._markers)))

    def scores(self) -> list[Markup]:
        """Return one picture for each slice of each numeric axis."""
        study, results = self.state.study, self.state.results
        pictures = []
        for axis in curves.numeric_axes(study):
            for levels, contexts in curves.slices(study, results, axis).items():
                along = curves.along(study, results, axis, contexts)
                if along:
                    ticks = sorted({dot.x for curve in along for dot in curve.dots})
                    lines = [self._line(curve) for curve in along]
                    title, metric = ", ".join(levels) or "Scores", self._metric(contexts[0])
                    pictures.append(charts.line_chart(title, axis, metric, lines, ticks=ticks, may_be_log=True))
        return self._with_legend(pictures)

    def _line(self, curve: Curve) -> ChartLine:
        points = [ChartPoint(dot.x, dot.mean, dot.label, dot.low, dot.high) for dot in curve.dots]
        return ChartLine(curve.name, self._marker(curve.name), points, curve.is_baseline)

    def _metric(self, context: Context) -> str:
        for system in self.state.results.systems:
            for score in self.state.results.of(system, context).values():
                return score.metric
        return "score"

    def costs(self) -> list[Markup]:
        """Return score against FLOPs and seconds, for each context at the last level of each numeric axis."""
        pictures = []
        for context in self._last_contexts():
            for unit, cost in _COSTS.items():
                points = curves.against_cost(self.state.results, context, cost, unit)
                if len(points) >= _FEWEST_POINTS:
                    title = f"{', '.join(context) or 'Score'}: {unit}"
                    pictures.append(self._cost_chart(title, unit, self._metric(context), points))
        return self._with_legend(pictures)

    def _cost_chart(self, title: str, x_name: str, y_name: str, points: Sequence[CostPoint]) -> Markup:
        drawn = [
            ParetoPoint(
                point.name, self._marker(point.name), ChartPoint(point.cost, point.score, point.label), point.on_front
            )
            for point in points
        ]
        return charts.cost_chart(title, x_name, y_name, drawn)

    def _with_legend(self, pictures: list[Markup]) -> list[Markup]:
        if not pictures:
            return []
        entries = [
            (system.name, self._marker(system.name), system.baseline is not None)
            for system in self.state.results.systems
        ]
        return [charts.legend(entries), charts.figures(pictures)]

    def _last_contexts(self) -> list[Context]:
        """Return the contexts at the last level of every numeric axis."""
        study = self.state.study
        axes = [axis for axis in study.axes if axis not in study.compare]
        ends = {axis: list(study.axes[axis])[-1] for axis in curves.numeric_axes(study)}
        return [
            context
            for context in self.state.results.contexts
            if all(ends.get(axis, level) == level for axis, level in zip(axes, context, strict=True))
        ]

    def forgetting(self) -> list[Markup]:
        """Return what each system forgot against its lead over the reference, one picture for each measure."""
        table, reference = self.state.scores, self.state.study.reference
        names = [column.name for column in table.columns]
        lead_name = f"lead over {reference}"
        lead, forgotten, measure = (names.index(name) for name in (lead_name, FORGOTTEN, FORGOTTEN_IN))
        system = names.index("system")
        pictures = []
        for context in self.state.results.contexts:
            by_measure: dict[str, list[tuple[str, float, float]]] = {}
            for row in table.rows:
                gain = 0.0 if row[system] == reference else row[lead]
                if tuple(row[:system]) == context and None not in (gain, row[forgotten]):
                    by_measure.setdefault(row[measure], []).append((row[system], row[forgotten], gain))
            for what, rows in by_measure.items():
                title = ", ".join(context) or "Forgetting against gain"
                points = curves.on_front(rows, lambda name, lost, gain: f"{name}: {gain:+.1f}, forgot {lost:+.3f}")
                pictures.append(self._cost_chart(title, f"forgotten in {what}", lead_name, points))
        return self._with_legend(pictures)

    def training(self) -> list[Markup]:
        """Return loss curves: of each pre-training, and of each system's first seed in the last contexts.

        Only losses of one kind share a picture: those of one pre-training objective, or of one context, whose cells
        all minimize the loss of one task.
        """
        figures = []
        for title, traces in [*self._pretraining_traces().items(), *self._finetuning_traces()]:
            figures += self._loss_charts(title, traces)
        return figures

    def _pretraining_traces(self) -> dict[str, list[Trace]]:
        output = self.state.study.output
        by_objective: dict[str, list[Trace]] = {}
        for node in self.state.graph.nodes.values():
            if node.kind == "pretrain" and is_finished(output, node.id):
                log = _read_log(cell_dir(output, node.id) / "logs" / "metrics.jsonl")
                trace = Trace(self._pretraining_name(node), log, study_engine.price(output, node.id))
                by_objective.setdefault(f"Pre-training by {_loss_name(node)}", []).append(trace)
        return by_objective

    def _finetuning_traces(self) -> Iterator[tuple[str, list[Trace]]]:
        results, output = self.state.results, self.state.study.output
        for context in self._last_contexts():
            traces = []
            for system in results.systems:
                runs = results.of(system, context)
                first = runs[min(runs)] if runs else None
                if first and (log := _read_log(cell_dir(output, first.node) / CURVE)):
                    traces.append(Trace(system.name, log, dict(first.cost)))
            yield ", ".join(context) or "Fine-tuning", traces

    def _pretraining_name(self, node: Node) -> str:
        """Name a pre-training by the system that starts from it, by the levels they share, or by its objective."""
        graph = self.state.graph
        cells = [cell for cell in graph.cells if node.id in graph.nodes[cell.node].parents]
        systems = {cell.system for cell in cells if cell.system.baseline is None}
        if len(systems) == 1:
            return systems.pop().name
        first = next(iter(systems)).levels if systems else ()
        shared = [level for level in first if all(level in system.levels for system in systems)]
        return "/".join(shared) or f"{node.recipe['objective']['name']} ({node.id.rpartition('-')[2][:4]})"

    def _loss_charts(self, title: str, traces: Sequence[Trace]) -> list[Markup]:
        pictures = []
        for unit in _TRAINING_UNITS:
            drawn = [trace.line(self._marker(trace.name), unit) for trace in traces]
            lines = [line for line in drawn if line is not None]
            if lines:
                pictures.append(charts.line_chart(f"{title}: loss over {unit}", unit, "loss", lines))
        if not pictures:
            return []
        names = dict.fromkeys(trace.name for trace in traces)
        legend = charts.legend([(name, self._marker(name), False) for name in names])
        return [legend, charts.figures(pictures)]


def _loss_name(node: Node) -> str:
    """Name the loss of a pre-training: the objective, or the objectives of a mixture."""
    objective = node.recipe["objective"]
    members = [member["name"] for member in objective.get("objectives", ())]
    return objective["name"] + (f" ({', '.join(members)})" if members else "")


def _read_log(path: Path) -> list[dict[str, Any]]:
    """Return the training steps of a log; nothing where it is missing or damaged."""
    try:
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError):
        return []
    return [entry for entry in entries if "loss" in entry and "tokens" in entry]
