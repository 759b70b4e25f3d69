"""The engine of a study: cells in an order in which parents come first, each once, retried and recorded."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headstart.core import artifact
from headstart.studies.graph import FAILURES, Graph, Node, home, is_finished
from headstart.studies.run.jobs import RESULT, order
from headstart.studies.run.workers import Executor

Told = Callable[["RunSummary", Node, str], None]


@dataclass
class RunSummary:
    """How far a study is."""

    total: int
    finished: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Nodes that failed for good, with their reasons."""
    skipped: list[str] = field(default_factory=list)
    """Nodes that need one of those."""
    unbegun: list[str] = field(default_factory=list)
    """Nodes for which the budget did not reach."""


def run(
    graph: Graph, output: Path, executor: Executor, told: Told, *, threads: int = 1, retries: int = 0,
    budget_seconds: float | None = None,
) -> RunSummary:  # fmt: skip
    """Perform every node whose artifact is missing; returns what was finished and what was not.

    What an earlier run recorded as failed is tried anew. `budget_seconds` is the time of all cells of this and earlier
    runs together, past which none is begun.
    """
    tally = RunSummary(len(graph.nodes))
    waiting = {name: node for name, node in graph.nodes.items() if not is_finished(output, name)}
    tally.finished = tally.total - len(waiting)
    done = set(graph.nodes.keys() - waiting.keys())
    spent = seconds_spent(graph, output) if budget_seconds else 0.0
    attempts: dict[str, int] = {}
    lost: dict[str, float] = {}
    running: set[str] = set()
    try:
        while waiting or running:
            for name in _ready(waiting, done, executor.capacity - len(running)):
                if budget_seconds is not None and spent >= budget_seconds:
                    break
                executor.submit(name, order(waiting.pop(name), output, threads))
                running.add(name)
            if not running:
                break
            for name, answer in executor.wait():
                running.discard(name)
                said = json.loads(answer)
                spent += said.get("seconds", 0.0)
                node = graph.nodes[name]
                if said["ended"] == "finished":
                    done.add(name)
                    tally.finished += 1
                    failure(output, name).unlink(missing_ok=True)
                    told(tally, node, "finished")
                    continue
                attempts[name] = attempts.get(name, 0) + 1
                lost[name] = lost.get(name, _lost_seconds(output, name)) + said.get("seconds", 0.0)
                if said["again"] and attempts[name] <= retries:
                    told(tally, node, f"failed and is tried again: {said['reason']}")
                    waiting = {name: node, **waiting}
                    continue
                tally.failed[name] = said["reason"]
                _record(output, name, {**said, "attempts": attempts[name], "seconds": lost[name]})
                told(tally, node, f"failed for good: {said['reason']}")
                for below in graph.descendants(name) & waiting.keys():
                    del waiting[below]
                    tally.skipped.append(below)
    finally:
        executor.close()
    tally.unbegun = list(waiting)
    return tally


def _ready(waiting: dict[str, Node], done: set[str], room: int) -> list[str]:
    """Return as many nodes as there is room for whose parents are all there, in the order of the graph."""
    found: list[str] = []
    for name, node in waiting.items():
        if len(found) >= room:
            break
        if done.issuperset(node.parents):
            found.append(name)
    return found


def failure(output: Path, node: str) -> Path:
    """Return the file that says why a node failed."""
    return output / FAILURES / f"{node}.json"


def reason(output: Path, node: str) -> str | None:
    """Return why a node failed, if that is on record."""
    try:
        found = json.loads(failure(output, node).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return f"{found['reason']} ({found['attempts']} attempt{'s' * (found['attempts'] != 1)})"


def seconds_spent(graph: Graph, output: Path) -> float:
    """Return what the nodes of a study took so far: the finished ones by their price tags, and attempts that failed."""
    finished = sum(float(price(output, name).get("seconds", 0.0)) for name in graph.nodes if is_finished(output, name))
    return finished + sum(_lost_seconds(output, name) for name in graph.nodes)


def _lost_seconds(output: Path, node: str) -> float:
    try:
        return float(json.loads(failure(output, node).read_text(encoding="utf-8")).get("seconds", 0.0))
    except (OSError, ValueError):
        return 0.0


def price(output: Path, node: str) -> dict[str, Any]:
    """Return the price tag of a finished node; empty where it has none."""
    place = home(output, node)
    manifest = artifact.read_manifest(place)
    if "cost" in manifest:
        return dict(manifest["cost"])
    try:
        return dict(json.loads((place / RESULT).read_text(encoding="utf-8")).get("cost", {}))
    except OSError:
        return {}


def _record(output: Path, node: str, said: dict[str, Any]) -> None:
    place = failure(output, node)
    place.parent.mkdir(parents=True, exist_ok=True)
    artifact.write_whole(place, json.dumps({**said, "at": time.strftime("%Y-%m-%dT%H:%M:%S%z")}, indent=2) + "\n")
