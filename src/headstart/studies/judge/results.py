"""What the finished cells of a study found, by system, context and seed, and the holes that are left."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from headstart.evaluation.metrics import about
from headstart.studies.graph import Cell, Graph, home, is_finished
from headstart.studies.grid import Context, System


@dataclass(frozen=True)
class CellScore:
    """What one cell found on the test rows."""

    node: str
    metric: str
    test: Mapping[str, float]
    gold: list[Any]
    predictions: list[Any]
    details: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    """Names the training rows: cells of one seed and one group share the rows that were drawn."""
    pretraining: str = ""
    """The pre-training of this study that it stands on; nothing where it stands on none."""

    @property
    def score(self) -> float:
        """Return the task's first metric."""
        return float(self.test[self.metric])

    @cached_property
    def sign(self) -> int:
        """Return 1 where more is better, and -1 where less is."""
        return -1 if about(self.metric).lower_is_better else 1


@dataclass(frozen=True)
class MissingCell:
    """A cell without a result, and why; None: it has not been run."""

    cell: Cell
    reason: str | None


@dataclass
class Results:
    """All outcomes of a study, in the order of its grid."""

    outcomes: dict[tuple[System, Context], dict[int, CellScore]] = field(default_factory=dict)
    holes: list[MissingCell] = field(default_factory=list)
    left_out: dict[tuple[System, Context], str] = field(default_factory=dict)
    """Baselines that have nothing to say on some rows, with their reasons."""
    overlaps: dict[tuple[System, Context], dict[str, Any]] = field(default_factory=dict)

    @property
    def contexts(self) -> list[Context]:
        """Return the contexts in the order of the grid."""
        return list(dict.fromkeys(context for _, context in [*self.outcomes, *self._empty]))

    @property
    def systems(self) -> list[System]:
        """Return the systems in the order of the grid, baselines after the others."""
        found = dict.fromkeys(system for system, _ in [*self.outcomes, *self._empty])
        return sorted(found, key=lambda system: system.baseline is not None)

    @property
    def _empty(self) -> list[tuple[System, Context]]:
        return [(hole.cell.system, hole.cell.context) for hole in self.holes]

    def of(self, system: System, context: Context) -> dict[int, CellScore]:
        """Return the outcomes of one system in one context by seed."""
        return self.outcomes.get((system, context), {})


def read(graph: Graph, output: Path, reasons: Mapping[str, str], one_draw: bool = False) -> Results:
    """Read every finished cell; `reasons` says why nodes failed, those whose parents failed included.

    `one_draw`: pre-training was seeded too, so that all cells of one seed share chance, whatever rows they read.
    """
    results = Results()
    known: dict[str, dict[str, Any]] = {}
    for cell in graph.cells:
        if not is_finished(output, cell.node):
            results.holes.append(MissingCell(cell, reasons.get(cell.node)))
            continue
        if cell.node not in known:
            path = home(output, cell.node) / "result.json"
            known[cell.node] = json.loads(path.read_text(encoding="utf-8"))
        found, key = known[cell.node], (cell.system, cell.context)
        if "left_out" in found:
            results.left_out[key] = found["left_out"]
            continue
        asked = graph.nodes[cell.node]
        group = "" if one_draw else asked.inputs.get("train", "")
        pretraining = "" if cell.system.baseline else next(iter(asked.parents), "")
        results.outcomes.setdefault(key, {})[cell.seed] = CellScore(
            cell.node, found["metric"], found["test"], found["gold"], found["predictions"], found["details"],
            found["cost"], group, pretraining,
        )  # fmt: skip
    for context, systems in graph.overlaps.items():
        for system, node in systems.items():
            if is_finished(output, node):
                path = home(output, node) / "result.json"
                results.overlaps[system, context] = json.loads(path.read_text(encoding="utf-8"))
    return results


def lost(graph: Graph, reasons: Mapping[str, str]) -> dict[str, str]:
    """Return the reasons of all nodes that cannot be had: their own, or that of the node they stand on."""
    found = dict(reasons)
    for name, reason in reasons.items():
        if name in graph.nodes:
            for below in graph.descendants(name):
                found.setdefault(below, f"{name}, which it needs, failed: {reason}")
    return found


def format_seeds(seeds: Iterable[int]) -> str:
    """Return seeds as a person writes them."""
    return ", ".join(map(str, sorted(seeds)))
