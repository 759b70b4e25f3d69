"""Read the finished cells of a study by system, context and seed, and list the missing ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from headstart.evaluation.metrics import About, about
from headstart.evaluation.resampling import CrossedDesign
from headstart.stages.finetune import result
from headstart.stages.finetune.result import MethodDetails
from headstart.studies.graph import Cell, Graph, cell_dir, is_finished
from headstart.studies.grid import Context, System

SCORE = "score"
"""The word that names the task's first metric in a contrast."""


@dataclass(frozen=True)
class CellScore:
    """Scores and predictions of one cell on the test rows, or a figure of a probe and its value for each item."""

    node: str
    metric: str
    """The task's first metric."""
    test: Mapping[str, float]
    gold: list[Any]
    """The gold values; for a figure of a probe the names of its items, and empty if it has none."""
    predictions: list[Any]
    """The predictions; for a figure of a probe the value of each item, whose mean is the figure."""
    details: MethodDetails = field(default_factory=MethodDetails)
    cost: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    """Names the training rows: cells of one seed and one group share the sampled rows."""
    pretraining: str = ""
    """The pre-training run of this study that the cell starts from; empty where there is none."""
    figure: About | None = None
    """The declaration of a figure that is no registered metric, such as that of a probe."""
    design: CrossedDesign | None = None
    """What is drawn in place of the items of a figure, if they are not independent of each other."""
    test_rows: frozenset[str] | None = None
    """Hashes of the test rows, if the system is not trained; None if it is, or if each seed has its own network."""

    @property
    def score(self) -> float:
        """Return the value of the task's first metric."""
        return float(self.test[self.metric])

    @cached_property
    def about(self) -> About:
        """Return the declaration of the first metric, or of the figure."""
        return about(self.metric) if self.figure is None else self.figure

    def about_metric(self, metric: str) -> About:
        """Return the declaration of the metric that a contrast names."""
        return self.about if metric in (SCORE, self.metric) else about(metric)

    @property
    def sign(self) -> int:
        """Return 1 where higher is better, and -1 where lower is better."""
        return -1 if self.about.lower_is_better else 1


Scores = dict[tuple[System, Context], dict[int, CellScore]]
"""The scores of each system in each context, by seed."""


@dataclass(frozen=True)
class MissingCell:
    """A cell without a result, and why; None: it has not run yet."""

    cell: Cell
    reason: str | None


@dataclass
class Results:
    """All scores of a study, in the order of its grid."""

    scores: Scores = field(default_factory=dict)
    missing: list[MissingCell] = field(default_factory=list)
    left_out: dict[tuple[System, Context], str] = field(default_factory=dict)
    """Baselines that do not apply to some rows, with their reasons."""
    overlaps: dict[tuple[System, Context], dict[str, Any]] = field(default_factory=dict)
    before: Callable[[int], Scores] | None = None
    """Computes the scores from the seeds before a seed alone, where a score depends on those of other seeds."""
    outcomes: dict[str, Results] = field(default_factory=dict)
    """Results of the same systems on other outcomes, as contrasts name them: `probe.minimal_pairs`."""

    @property
    def all_missing(self) -> list[MissingCell]:
        """Return the missing cells of all outcomes, each once."""
        missing = {item.cell: item for results in (self, *self.outcomes.values()) for item in results.missing}
        return list(missing.values())

    @property
    def contexts(self) -> list[Context]:
        """Return the contexts in the order of the grid."""
        return list(dict.fromkeys(context for _, context in [*self.scores, *self._missing_keys]))

    @property
    def systems(self) -> list[System]:
        """Return the systems in the order of the grid, baselines last."""
        systems = dict.fromkeys(system for system, _ in [*self.scores, *self._missing_keys])
        return sorted(systems, key=lambda system: system.baseline is not None)

    @property
    def _missing_keys(self) -> list[tuple[System, Context]]:
        return [(missing.cell.system, missing.cell.context) for missing in self.missing]

    def of(self, system: System, context: Context) -> dict[int, CellScore]:
        """Return the scores of one system in one context by seed."""
        return self.scores.get((system, context), {})


def read(graph: Graph, output: Path, reasons: Mapping[str, str], one_draw: bool = False) -> Results:
    """Read every finished cell; `reasons` explains why nodes failed, including those whose parents failed.

    `one_draw`: pre-training was seeded too, so all cells of one seed depend on each other, whatever rows they read.
    """
    results = Results()
    payloads: dict[str, dict[str, Any]] = {}
    test_sets: dict[frozenset[str], frozenset[str]] = {}
    for cell in graph.cells:
        if graph.nodes[cell.node].kind == "probe":
            continue
        if not is_finished(output, cell.node):
            results.missing.append(MissingCell(cell, reasons.get(cell.node)))
            continue
        if cell.node not in payloads:
            payloads[cell.node] = read_cell(output, cell.node)
        payload, key = payloads[cell.node], (cell.system, cell.context)
        if "left_out" in payload:
            results.left_out[key] = payload["left_out"]
            continue
        node = graph.nodes[cell.node]
        group = "" if one_draw else node.inputs.get("train", "")
        pretraining = "" if cell.system.baseline else next(iter(node.parents), "")
        test_rows = None
        if "rows" in payload and not (one_draw and pretraining):
            rows = frozenset(payload["rows"])
            test_rows = test_sets.setdefault(rows, rows)
        results.scores.setdefault(key, {})[cell.seed] = CellScore(
            cell.node, payload["metric"], payload["test"], payload["gold"], payload["predictions"],
            MethodDetails.from_dict(payload["details"]), payload["cost"], group, pretraining, test_rows=test_rows,
        )  # fmt: skip
    for context, systems in graph.overlaps.items():
        for system, name in systems.items():
            if is_finished(output, name):
                results.overlaps[system, context] = read_cell(output, name)
    return results


def read_cell(output: Path, node: str) -> dict[str, Any]:
    """Return what a finished cell published."""
    return result.read(cell_dir(output, node))


def lost(graph: Graph, reasons: Mapping[str, str]) -> dict[str, str]:
    """Return why each unobtainable node failed: its own reason, or that of the node it depends on."""
    failed = dict(reasons)
    for name, reason in reasons.items():
        if name in graph.nodes:
            for descendant in graph.descendants(name):
                failed.setdefault(descendant, f"{name}, which it needs, failed: {reason}")
    return failed


def format_seeds(seeds: Iterable[int]) -> str:
    """Return seeds as a sorted list: `0, 1, 4`."""
    return ", ".join(map(str, sorted(seeds)))
