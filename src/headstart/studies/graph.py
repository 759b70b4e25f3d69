"""Cells as a graph of artifacts, each addressed by the hash of its filled recipe, its parents and what it reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from headstart.core import artifact, config, renames
from headstart.studies.grid import Context, System

Kind = Literal["prepare", "pretrain", "finetune", "baseline", "overlap"]
CELLS, WORK, FAILURES = "cells", "work", "failures"
ABSENT = "absent "
"""Stands before the path of what a node reads, in place of its content, where there is nothing."""


@dataclass(frozen=True)
class Node:
    """One piece of work: a kind, a filled recipe, the nodes whose artifacts it reads, and its address."""

    kind: Kind
    recipe: dict[str, Any]
    parents: tuple[str, ...] = ()
    inputs: dict[str, str] = field(default_factory=dict)
    """What it reads from outside, each named by its content."""
    id: str = ""

    @classmethod
    def addressed(
        cls,
        kind: Kind,
        recipe: dict[str, Any],
        identity: Mapping[str, Any],
        parents: Iterable[Node],
        inputs: Mapping[str, str],
    ) -> Node:
        """Make a node and work out its address from `identity`, its recipe without paths, and from what it reads."""
        ids, reads = tuple(parent.id for parent in parents), dict(inputs)
        address = config.fingerprint(
            {"kind": kind, "recipe": renames.original(identity), "parents": ids, "inputs": reads}, 20
        )
        return cls(kind, recipe, ids, reads, f"{kind}-{address}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Node:
        """Read what `to_dict` wrote."""
        return cls(**{**values, "parents": tuple(values["parents"])})


@dataclass(frozen=True)
class Cell:
    """One place in the table: a system in a context with a seed, and the node that fills it."""

    system: System
    context: Context
    seed: int
    node: str


@dataclass
class Graph:
    """All nodes of a study in an order in which parents come first, and the cells that they fill."""

    nodes: dict[str, Node] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    overlaps: dict[Context, dict[System, str]] = field(default_factory=dict)
    """For each context and system the node that counts test items in the pre-training corpus, where one can."""
    unsearched: list[str] = field(default_factory=list)
    """Checkpoints whose corpus is known and not there, so that nothing can be looked for in it."""

    def add(self, node: Node) -> Node:
        """Take a node in, unless it is there: what is addressed alike is computed once."""
        return self.nodes.setdefault(node.id, node)

    def shared(self) -> Iterator[tuple[Node, int]]:
        """Yield each node that others read, with how many do."""
        readers = Counter(parent for node in self.nodes.values() for parent in node.parents)
        for name, count in readers.items():
            yield self.nodes[name], count

    def absent(self) -> Counter[str]:
        """Return every file or folder that cells read and that is not there, with how many of them read it."""
        reads = (found for node in self.nodes.values() for found in set(node.inputs.values()))
        return Counter(found.removeprefix(ABSENT) for found in reads if found.startswith(ABSENT))

    def descendants(self, name: str) -> set[str]:
        """Return every node that cannot be computed without this one."""
        found = {name}
        for node in self.nodes.values():
            if found & set(node.parents):
                found.add(node.id)
        return found - {name}


def home(output: Path, node: str) -> Path:
    """Return the folder of a node's artifact."""
    return output / CELLS / node


def is_finished(output: Path, node: str) -> bool:
    """Say whether a node's artifact is there."""
    return artifact.is_complete(home(output, node))
