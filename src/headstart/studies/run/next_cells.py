"""Select the cells that the next test of a study's claims needs, those first that decide most per second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean

from headstart.studies.contrast import Contrast
from headstart.studies.definition import Claim, Study
from headstart.studies.graph import Cell, Graph, is_finished
from headstart.studies.judge.evidence import covers
from headstart.studies.judge.verdicts import Verdict
from headstart.studies.run.engine import price


def select(study: Study, graph: Graph, seeds: int, verdicts: Sequence[Verdict]) -> Graph:
    """Return the part of a graph that a test after so many seeds needs, and every cell that is finished.

    Args:
        study: the study.
        graph: all its cells.
        seeds: the seeds that the test sees.
        verdicts: those of the test before. Claims that it decided need no further cells, and those claims come first
            that are most likely to be decided in proportion to their missing cells' seconds. Empty for the first test,
            which sees all cells of its seeds, in the order of the grid.
    """
    cells = [cell for cell in graph.cells if cell.seed < study.first_seed + seeds]
    names: dict[str, None] = {}
    if not verdicts:
        _collect(graph, (cell.node for cell in cells), names)
        _collect(graph, (name for systems in graph.overlaps.values() for name in systems.values()), names)
    else:
        undecided = [verdict for verdict in verdicts if verdict.word == "undecided"]
        needed = [_needed(study, graph, verdict.claim, cells) for verdict in undecided]
        seconds = [_missing_seconds(study.output, graph, nodes) for nodes in needed]
        rates = [verdict.chance(seeds) / max(cost, 1e-9) for verdict, cost in zip(undecided, seconds, strict=True)]
        for i in sorted(range(len(undecided)), key=lambda i: -rates[i]):
            _collect(graph, needed[i], names)
    _collect(graph, (name for name in graph.nodes if is_finished(study.output, name)), names)
    kept = [cell for cell in graph.cells if cell.node in names]
    return Graph({name: graph.nodes[name] for name in names}, kept, graph.overlaps, graph.unsearched)


def _collect(graph: Graph, wanted: Iterable[str], names: dict[str, None]) -> None:
    """Add nodes, each after its parents."""
    for name in wanted:
        _collect(graph, graph.nodes[name].parents, names)
        names.setdefault(name)


def _needed(study: Study, graph: Graph, claim: Claim, cells: Iterable[Cell]) -> list[str]:
    """Return the nodes that a claim is judged by."""
    contrast = Contrast.parse(claim.contrast)
    nodes: list[str] = []
    for cell in cells:
        node = graph.nodes[cell.node]
        is_side = cell.system.has(contrast.better) or cell.system.has(contrast.worse)
        if not is_side or not covers(study, claim, cell.context):
            continue
        if contrast.level is not None:
            nodes += node.parents
        elif contrast.probe is None if node.kind != "probe" else node.recipe["probe"] == contrast.probe:
            nodes.append(node.id)
    return nodes


def _missing_seconds(output: Path, graph: Graph, nodes: Iterable[str]) -> float:
    """Return the seconds that nodes without a result will take, from the mean of the finished ones of their kind."""
    all_nodes: dict[str, None] = {}
    _collect(graph, nodes, all_nodes)
    missing = [graph.nodes[name].kind for name in all_nodes if not is_finished(output, name)]
    total = 0.0
    for kind in set(missing):
        known = [float(price(output, name).get("seconds", 0.0)) for name, node in graph.nodes.items()
                 if node.kind == kind and is_finished(output, name)]  # fmt: skip
        total += missing.count(kind) * (mean(known) if known else 1.0)
    return total
