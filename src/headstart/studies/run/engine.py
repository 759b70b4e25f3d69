"""Run the cells of a study: parents first, each once, failures retried and recorded."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headstart.core import artifact
from headstart.core.processes import Executor
from headstart.stages.finetune.result import RESULT
from headstart.studies.graph import FAILURES, Graph, Node, cell_dir, is_finished
from headstart.studies.run.jobs import serialize_job

Notify = Callable[["RunSummary", Node, str], None]
"""Called after every attempt with the summary so far, the node, and what happened to it."""


@dataclass
class RunSummary:
    """How many cells of a study are finished, and why the others are not."""

    total: int
    finished: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Nodes whose last attempt failed, with their reasons."""
    skipped: list[str] = field(default_factory=list)
    """Nodes that depend on a failed one."""
    not_started: list[str] = field(default_factory=list)
    """Nodes that did not start because the budget was used up."""
    not_needed: int = 0
    """Nodes that were left out, because the claims on them are decided."""


def run(
    graph: Graph, output: Path, executor: Executor[str], notify: Notify, *, threads: int = 1, retries: int = 0,
    budget_seconds: float | None = None,
) -> RunSummary:  # fmt: skip
    """Run every node whose artifact is missing; return how many are finished and why the others are not.

    Nodes that failed in an earlier run are tried again. `budget_seconds` is the total time of all cells, including
    those of earlier runs; no cell starts after it is used up.
    """
    waiting = {name: node for name, node in graph.nodes.items() if not is_finished(output, name)}
    summary = RunSummary(len(graph.nodes), finished=len(graph.nodes) - len(waiting))
    finished = set(graph.nodes.keys() - waiting.keys())
    spent = seconds_spent(graph, output) if budget_seconds else 0.0
    attempts = _Attempts(output, retries)
    running: set[str] = set()
    try:
        while waiting or running:
            for name in _ready(waiting, finished, executor.capacity - len(running)):
                if budget_seconds is not None and spent >= budget_seconds:
                    break
                executor.submit(name, serialize_job(waiting.pop(name), output, threads))
                running.add(name)
            if not running:
                break
            for name, answer in executor.wait():
                running.discard(name)
                node, outcome = graph.nodes[name], json.loads(answer)
                spent += outcome.get("seconds", 0.0)
                if outcome["ended"] == "finished":
                    finished.add(name)
                    summary.finished += 1
                    failure(output, name).unlink(missing_ok=True)
                    notify(summary, node, "finished")
                elif attempts.may_retry(name, outcome):
                    waiting = {name: node, **waiting}
                    notify(summary, node, f"failed and is retried: {outcome['reason']}")
                else:
                    attempts.record(name, outcome)
                    summary.failed[name] = outcome["reason"]
                    dependent = graph.descendants(name) & waiting.keys()
                    waiting = {key: value for key, value in waiting.items() if key not in dependent}
                    summary.skipped += dependent
                    notify(summary, node, f"failed: {outcome['reason']}")
    finally:
        executor.close()
    summary.not_started = list(waiting)
    return summary


class _Attempts:
    """Counts the failed attempts of each node and the seconds that they took."""

    def __init__(self, output: Path, retries: int) -> None:
        self.output, self.retries = output, retries
        self.count: dict[str, int] = {}
        self.seconds: dict[str, float] = {}

    def may_retry(self, name: str, outcome: dict[str, Any]) -> bool:
        """Count a failed attempt and return True if another one is allowed and may help."""
        self.count[name] = self.count.get(name, 0) + 1
        before = self.seconds.get(name, _failed_seconds(self.output, name))
        self.seconds[name] = before + outcome.get("seconds", 0.0)
        return bool(outcome["again"]) and self.count[name] <= self.retries

    def record(self, name: str, outcome: dict[str, Any]) -> None:
        """Write why a node failed."""
        path = failure(self.output, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        entry = {
            **outcome,
            "attempts": self.count[name],
            "seconds": self.seconds[name],
            "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        artifact.write_whole(path, json.dumps(entry, indent=2) + "\n")


def _ready(waiting: dict[str, Node], finished: set[str], free: int) -> list[str]:
    """Return up to `free` nodes whose parents are all finished, in the order of the graph."""
    ready: list[str] = []
    for name, node in waiting.items():
        if len(ready) >= free:
            break
        if finished.issuperset(node.parents):
            ready.append(name)
    return ready


def failure(output: Path, node: str) -> Path:
    """Return the path of the file that records why a node failed."""
    return output / FAILURES / f"{node}.json"


def reason(output: Path, node: str) -> str | None:
    """Return why a node failed and after how many attempts; None if no failure is recorded."""
    entry = _read_failure(output, node)
    if entry is None:
        return None
    return f"{entry['reason']} ({entry['attempts']} attempt{'s' * (entry['attempts'] != 1)})"


def _read_failure(output: Path, node: str) -> dict[str, Any] | None:
    try:
        entry: dict[str, Any] = json.loads(failure(output, node).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return entry


def seconds_spent(graph: Graph, output: Path) -> float:
    """Return the seconds that the nodes of a study have taken so far, including failed attempts."""
    finished = sum(float(price(output, name).get("seconds", 0.0)) for name in graph.nodes if is_finished(output, name))
    return finished + sum(_failed_seconds(output, name) for name in graph.nodes)


def _failed_seconds(output: Path, node: str) -> float:
    return float((_read_failure(output, node) or {}).get("seconds", 0.0))


def price(output: Path, node: str) -> dict[str, Any]:
    """Return the measured cost of a finished node; empty where none was recorded."""
    folder = cell_dir(output, node)
    manifest = artifact.read_manifest(folder)
    if "cost" in manifest:
        return dict(manifest["cost"])
    try:
        return dict(json.loads((folder / RESULT).read_text(encoding="utf-8")).get("cost", {}))
    except OSError:
        return {}
