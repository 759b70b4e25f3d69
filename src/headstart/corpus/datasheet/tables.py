"""The tables of a datasheet, for Markdown and HTML alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Facts = Mapping[str, Any]
_SOURCE_COLUMNS = {
    "source": "name", "license, as given": "license", "files": "files", "files skipped": "files_passed_over",
    "bytes": "bytes", "rows": "rows", "rejects": "rejects", "characters read": "characters",
    "characters kept": "characters_kept",
}  # fmt: skip
"""Header of a column → the key of a source in the facts."""
_SET_COLUMNS = {
    "set": "set", "items": "items", "too short to search for": "too_short", "items found": "items_found",
    "documents with an item": "documents",
}  # fmt: skip


@dataclass(frozen=True)
class FactTable:
    """A header and rows of plain values."""

    header: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    @property
    def numeric(self) -> list[bool]:
        """Return for each column whether all of its values are numbers."""
        return [all(isinstance(row[index], int) for row in self.rows) for index in range(len(self.header))]

    def texts(self) -> list[list[str]]:
        """Return the rows as text; thousands are separated by commas."""
        return [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in self.rows]


def steps(facts: Facts) -> FactTable:
    """Return the rows and characters that each step read, kept and dropped."""
    header = ("step", "rows in", "rows out", "characters out", "dropped, by rule")
    rows = [
        (step["step"], step["rows_in"], step["rows_out"], step["characters_out"], _listed(step["dropped"]))
        for step in facts["books"]
    ]
    return FactTable(header, rows)


def sources(facts: Facts) -> FactTable:
    """Return the sources of the text and how much of each was kept."""
    keys = _SOURCE_COLUMNS.values()
    rows = [tuple("not given" if source[key] is None else source[key] for key in keys) for source in facts["sources"]]
    return FactTable(tuple(_SOURCE_COLUMNS), rows)


def sets(facts: Facts) -> FactTable:
    """Return how many items of each evaluation set were found."""
    rows = [tuple(entry[key] for key in _SET_COLUMNS.values()) for entry in facts["sets"]]
    return FactTable(tuple(_SET_COLUMNS), rows)


def clusters(facts: Facts) -> FactTable:
    """Return the largest groups of duplicates."""
    rows = [(group["members"], group["id"], group["text"][:100]) for group in facts["clusters"]]
    return FactTable(("documents", "kept", "beginning of its text"), rows)


def shards(facts: Facts) -> FactTable:
    """Return the number of tokens in each split."""
    keys = ("documents", "sentences", "tokens", "vocab")
    rows = [(split, *(counts[key] for key in keys)) for split, counts in facts["shards"].items()]
    return FactTable(("split", "documents", "sentences", "tokens", "vocabulary"), rows)


def _listed(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{rule} {count:,}" for rule, count in sorted(dropped.items(), key=lambda item: -item[1])) or "–"
