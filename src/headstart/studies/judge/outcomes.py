"""Outcomes of a study besides the scores of its tasks: figures of probes, and tokens until a level is reached.

A probe with items is compared item by item.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headstart.core import config
from headstart.evaluation.metrics import About
from headstart.evaluation.resampling import CrossedDesign
from headstart.studies.contrast import PROBE, Contrast
from headstart.studies.definition import Claim
from headstart.studies.graph import Graph, Node, is_finished
from headstart.studies.grid import Context
from headstart.studies.judge import looks, reaching
from headstart.studies.judge.results import CellScore, MissingCell, Results, Scores, read_cell


def read(graph: Graph, output: Path, reasons: Mapping[str, str], claims: Iterable[Claim]) -> dict[str, Results]:
    """Return the results of every probe by its first figure, and of every other outcome that a claim names.

    Args:
        graph: the graph of the study.
        output: its folder.
        reasons: why nodes failed, including those whose parents failed.
        claims: its claims.
    """
    probes = [node.recipe["probe"] for node in graph.nodes.values() if node.kind == PROBE]
    contrasts = [Contrast.parse(claim.contrast) for claim in claims]
    named = [contrast.outcome for contrast in contrasts if contrast.probe is not None]
    names = dict.fromkeys([*(f"{PROBE}.{probe}" for probe in probes), *named])
    found = {name: _of_probe(graph, output, reasons, name) for name in names}
    curves = {contrast.outcome: contrast for contrast in contrasts if contrast.level is not None}
    return found | {name: reaching.read(graph, output, reasons, each) for name, each in curves.items()}


def _of_probe(graph: Graph, output: Path, reasons: Mapping[str, str], outcome: str) -> Results:
    """Return a figure of a probe for every model.

    Probes of one seed share nothing but the pre-training's seed, so all of them count as one group.
    """
    _, probe, measure = [*outcome.split("."), ""][:3]
    results = Results()
    for cell in graph.cells:
        node = graph.nodes[cell.node]
        if node.kind != PROBE or node.recipe["probe"] != probe:
            continue
        if not is_finished(output, cell.node):
            results.missing.append(MissingCell(cell, reasons.get(cell.node)))
            continue
        payload, key = read_cell(output, cell.node), (cell.system, cell.context)
        if "left_out" in payload:
            results.left_out[key] = payload["left_out"]
            continue
        figure = _figure(payload["scores"], measure)
        if figure is None:
            found = ", ".join(_slug(score["measure"]) for score in payload["scores"]) or "none"
            results.left_out[key] = f"the probe has no figure {measure or 'here'}; its figures are: {found}"
            continue
        results.scores.setdefault(key, {})[cell.seed] = _score(node, figure, payload["cost"], outcome)
    raw = results.scores
    return replace(results, scores=_common(raw), before=lambda seed: _common(looks.scores_until(raw, seed)))


def _figure(scores: Iterable[dict[str, Any]], measure: str) -> dict[str, Any] | None:
    """Return the first figure that has a value and whose name begins with the words of `measure`."""
    known = (score for score in scores if score["value"] is not None)
    return next((score for score in known if _slug(score["measure"]).startswith(measure.lower())), None)


def _slug(measure: str) -> str:
    """Return the name of a figure as a contrast writes it: `facts_answer_first`."""
    return "_".join(re.findall(r"\w+", measure.lower()))


def _score(node: Node, figure: Mapping[str, Any], cost: Mapping[str, Any], outcome: str) -> CellScore:
    inputs = {name: content for name, content in node.inputs.items() if name != "model"}
    data = config.fingerprint({"inputs": inputs, "limit": node.recipe["limit"], "seed": node.recipe["seed"]})
    items, name = figure["points"], str(figure["measure"])
    return CellScore(
        node.id, name, {name: float(figure["value"])}, [f"{data} {i}" for i in range(len(items))], items,
        cost=cost, pretraining="" if node.recipe["untrained_seed"] is not None else next(iter(node.parents), ""),
        figure=About(of="number", scale=float(figure["scale"]), family=f"{outcome} × {figure['scale']:g}"),
        design=CrossedDesign(**figure["design"]) if "design" in figure else None,
    )  # fmt: skip


def _common(scores: Scores) -> Scores:
    """Return the scores on the items that all cells of a context have a value for.

    Networks differ in the items that they can take, such as the longest sentence, or the words that are one token.
    """
    common = {key: dict(runs) for key, runs in scores.items()}
    by_data: dict[tuple[Context, str], list[tuple[dict[int, CellScore], int]]] = {}
    for (_, context), runs in common.items():
        for seed, cell in runs.items():
            if cell.gold:
                by_data.setdefault((context, cell.gold[0]), []).append((runs, seed))
    for cells in by_data.values():
        values = [runs[seed].predictions for runs, seed in cells]
        kept = [i for i, row in enumerate(zip(*values, strict=True)) if None not in row]
        for runs, seed in cells:
            cell = runs[seed]
            items = [cell.predictions[i] for i in kept]
            figure = {cell.metric: sum(items) / len(items)} if items else cell.test
            design = None if cell.design is None else cell.design.at(kept)
            gold = [cell.gold[i] for i in kept]
            runs[seed] = replace(cell, test=figure, gold=gold, predictions=items, design=design)
    return common
