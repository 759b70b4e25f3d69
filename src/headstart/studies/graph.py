"""Cells as a graph of artifacts, each addressed by a hash of its filled recipe, its parents and its input files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from headstart.core import artifact, config, renames
from headstart.studies.grid import Context, System

Kind = Literal["prepare", "pretrain", "finetune", "baseline", "overlap", "probe"]
CELLS, WORK, FAILURES = "cells", "work", "failures"
ABSENT = "absent "
"""Prefix of the path of an input file that does not exist, in place of a hash of its content."""


@dataclass(frozen=True)
class Node:
    """One piece of work: a kind, a filled recipe, the nodes whose artifacts it reads, and its address."""

    kind: Kind
    recipe: dict[str, Any]
    parents: tuple[str, ...] = ()
    inputs: dict[str, str] = field(default_factory=dict)
    """The files it reads from outside the study, each identified by a hash of its content."""
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
        """Return a node with its address, computed from `identity` (the recipe without paths), parents and inputs."""
        ids, hashes = tuple(parent.id for parent in parents), dict(inputs)
        address = config.fingerprint(
            {"kind": kind, "recipe": renames.original(identity), "parents": ids, "inputs": hashes}, 20
        )
        return cls(kind, recipe, ids, hashes, f"{kind}-{address}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Node:
        """Return the node that `to_dict` wrote; recipe keys that were renamed since then are translated."""
        recipe = renames.upgrade(values["recipe"])
        return cls(**{**values, "recipe": recipe, "parents": tuple(values["parents"])})


@dataclass(frozen=True)
class Cell:
    """One entry of the table: a system in a context with a seed, and the node that computes it."""

    system: System
    context: Context
    seed: int
    node: str


@dataclass
class Graph:
    """All nodes of a study, parents before their children, and the cells that they compute."""

    nodes: dict[str, Node] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    overlaps: dict[Context, dict[System, str]] = field(default_factory=dict)
    """The node that counts test items in the pre-training corpus, by context and system, where the corpus is known."""
    unsearched: list[str] = field(default_factory=list)
    """Checkpoints whose corpus is known but missing, so that it cannot be searched for test items."""

    def add(self, node: Node) -> Node:
        """Add a node and return it; nodes with the same address are computed once."""
        return self.nodes.setdefault(node.id, node)

    def shared(self) -> Iterator[tuple[Node, int]]:
        """Yield each node that other nodes read, with the number of its readers."""
        readers = Counter(parent for node in self.nodes.values() for parent in node.parents)
        for name, count in readers.items():
            yield self.nodes[name], count

    def absent(self) -> Counter[str]:
        """Return every input file or folder that does not exist, with the number of cells that read it."""
        inputs = (content for node in self.nodes.values() for content in set(node.inputs.values()))
        return Counter(content.removeprefix(ABSENT) for content in inputs if content.startswith(ABSENT))

    def descendants(self, name: str) -> set[str]:
        """Return every node that depends on this one."""
        dependent = {name}
        for node in self.nodes.values():
            if dependent & set(node.parents):
                dependent.add(node.id)
        return dependent - {name}


def cell_dir(output: Path, node: str) -> Path:
    """Return the folder of a node's artifact."""
    return output / CELLS / node


def is_finished(output: Path, node: str) -> bool:
    """Return True if a node's artifact is complete."""
    return artifact.is_complete(cell_dir(output, node))
