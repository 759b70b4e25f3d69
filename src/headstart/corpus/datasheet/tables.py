"""The tables of a datasheet, as heads and rows, whatever they are written in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Table = tuple[tuple[str, ...], list[tuple[Any, ...]]]
Facts = Mapping[str, Any]


def steps(facts: Facts) -> Table:
    """Return what each step took in, gave out and dropped."""
    head = ("step", "rows in", "rows out", "characters out", "what left, by rule")
    return head, [
        (b["step"], b["rows_in"], b["rows_out"], b["characters_out"], _listed(b["dropped"])) for b in facts["books"]
    ]


def sources(facts: Facts) -> Table:
    """Return where the text came from and how much of it was kept."""
    names = (
        "name",
        "licence",
        "files",
        "files_passed_over",
        "bytes",
        "rows",
        "rejects",
        "characters",
        "characters_kept",
    )
    head = (
        "source", "licence, as given", "files", "files beside, not read", "bytes", "rows", "rejects",
        "characters read", "characters kept",
    )  # fmt: skip
    return head, [tuple(s[name] if s[name] is not None else "not given" for name in names) for s in facts["sources"]]


def sets(facts: Facts) -> Table:
    """Return how much of each evaluation set was met."""
    names = ("set", "items", "too_short", "items_found", "documents")
    head = ("set", "items", "too short to look for", "items found", "documents that hold some")
    return head, [tuple(s[name] for name in names) for s in facts["sets"]]


def clusters(facts: Facts) -> Table:
    """Return the largest groups of duplicates."""
    return ("members", "kept", "begins"), [(c["members"], c["id"], c["text"][:100]) for c in facts["clusters"]]


def shards(facts: Facts) -> Table:
    """Return how many tokens each split has."""
    names = ("documents", "sentences", "tokens", "vocab")
    rows = [(split, *(counts[name] for name in names)) for split, counts in facts["shards"].items()]
    return ("split", "documents", "sentences", "tokens", "vocabulary"), rows


def _listed(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{rule} {count:,}" for rule, count in sorted(dropped.items(), key=lambda item: -item[1])) or "–"
