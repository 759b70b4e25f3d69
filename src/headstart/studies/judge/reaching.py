"""How many tokens a pre-training reads until a held-out value reaches a level: `tokens_to(loss, 3.5)`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from headstart.core import registry
from headstart.evaluation.metrics import About, about
from headstart.studies.contrast import Contrast
from headstart.studies.graph import Graph, cell_dir, is_finished
from headstart.studies.grid import Context, System
from headstart.studies.judge.results import CellScore, MissingCell, Results, Scores

Evaluations = Sequence[tuple[float, float]]
"""The tokens read at each evaluation, and the value that was measured."""
_MILLION = 1e-6


def read(graph: Graph, output: Path, reasons: Mapping[str, str], contrast: Contrast) -> Results:
    """Return the tokens that each pre-training reads until it reaches the level of a contrast."""
    missing: list[MissingCell] = []
    logs: dict[tuple[System, Context], dict[int, tuple[str, Evaluations]]] = {}
    seen: set[tuple[System, Context, str]] = set()
    for cell in graph.cells:
        parent = next((name for name in graph.nodes[cell.node].parents if graph.nodes[name].kind == "pretrain"), None)
        # Without a seed of its own, one pre-training serves all seeds, and counts once.
        if parent is None or cell.system.baseline or (cell.system, cell.context, parent) in seen:
            continue
        seen.add((cell.system, cell.context, parent))
        if is_finished(output, parent):
            log = evaluations(cell_dir(output, parent) / "logs" / "metrics.jsonl", contrast.metric)
            logs.setdefault((cell.system, cell.context), {})[cell.seed] = parent, log
        else:
            missing.append(MissingCell(replace(cell, node=parent), reasons.get(parent)))
    return replace(tokens_until(logs, contrast), missing=missing)


def tokens_until(
    logs: Mapping[tuple[System, Context], Mapping[int, tuple[str, Evaluations]]], contrast: Contrast
) -> Results:
    """Return the tokens until the level is reached, from the evaluations of each run and the name of its node.

    A run that never reaches it counts as one that does one token after the longest run ended, so it is worse than every
    run that reached the level, and equal to the others that did not.
    """

    def before(seed: int) -> Scores:
        seen = {key: {own: run for own, run in runs.items() if own < seed} for key, runs in logs.items()}
        return tokens_until(seen, contrast).scores

    assert contrast.level is not None
    longest = max((log[-1][0] for runs in logs.values() for _, log in runs.values() if log), default=0.0)
    results = Results(before=before)
    for key, runs in logs.items():
        for seed, (node, log) in runs.items():
            if not log:
                results.left_out[key] = f"its log has no validation value {contrast.metric}"
                continue
            reached = tokens_to(log, contrast.level, is_lower_better(contrast.metric))
            value = longest + 1 if reached is None else reached
            figure = About(of="number", lower_is_better=True, scale=_MILLION, family=contrast.outcome)
            results.scores.setdefault(key, {})[seed] = CellScore(
                node, contrast.outcome, {contrast.outcome: value}, [], [reached], pretraining=node, figure=figure
            )
    return results


def tokens_to(log: Evaluations, level: float, lower_is_better: bool) -> float | None:
    """Return the tokens at which a value first reaches a level, interpolated between evaluations; None: it never does.

    Args:
        log: tokens and values, in order.
        level: the value to reach.
        lower_is_better: whether the value falls as the network learns.
    """
    sign = 1 if lower_is_better else -1
    for i, (tokens, value) in enumerate(log):
        if sign * value <= sign * level:
            if i == 0:
                return tokens
            before, last = log[i - 1]
            return before + (last - level) / (last - value) * (tokens - before)
    return None


def never_reached(results: Results, systems: Sequence[System]) -> str:
    """Return which of the systems have runs that never reached the level; empty if all did."""
    counts: dict[str, list[bool]] = {}
    for (system, _), runs in results.scores.items():
        if system in systems:
            counts.setdefault(system.name, []).extend(cell.predictions[0] is None for cell in runs.values())
    censored = [f"{sum(never)} of {len(never)} runs of {name}" for name, never in counts.items() if any(never)]
    if not censored:
        return ""
    return f"{', '.join(censored)} never reached it, and count as if they had right after the longest run."


def is_lower_better(name: str) -> bool:
    """Return whether a validation value falls as a network learns: a loss does, a registered metric may not."""
    return about(name).lower_is_better if name in registry.names("metrics") else not name.endswith("accuracy")


def evaluations(path: Path, name: str) -> Evaluations:
    """Return the evaluations in a training log; nothing where it is missing or damaged.

    An evaluation has a step, and the entries about training have the tokens of theirs.
    """
    try:
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError):
        return []
    key = f"validation/{name}"
    read = [(0.0, 0.0), *((float(entry["step"]), float(entry["tokens"])) for entry in entries if "tokens" in entry)]
    steps, tokens = zip(*read, strict=True)
    return [
        (float(np.interp(float(entry["step"]), steps, tokens)), float(entry[key])) for entry in entries if key in entry
    ]
