"""Groups of rows: quartiles of a number, values of a column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headstart.core.errors import shorten

MOST_VALUES = 20
"""A column with more values is shown by its quartiles if it holds numbers, else by its most frequent values."""
_LONGEST_NAME = 100
OTHER, EMPTY = "(all other values)", "(empty)"


@dataclass(frozen=True)
class Slice:
    """A group of rows."""

    name: str
    rows: list[int]


def by_quartile(numbers: Sequence[float]) -> list[Slice]:
    """Return up to four groups of rows with similar numbers, named by their smallest and largest one.

    Rows with equal numbers are in the same group, so groups differ in size where many are equal.
    """
    values = np.asarray(numbers, dtype=np.float64)
    edges = np.quantile(values, [0.25, 0.5, 0.75])
    group = np.searchsorted(edges, values, side="left")
    slices = []
    for i in np.unique(group).tolist():
        rows = np.flatnonzero(group == i)
        low, high = values[rows].min(), values[rows].max()
        slices.append(Slice(f"{low:,.6g}" if low == high else f"{low:,.6g} to {high:,.6g}", rows.tolist()))
    return slices


def by_value(values: Sequence[Any], limit: int = MOST_VALUES) -> list[Slice]:
    """Return one group of rows per value, the largest first; see `MOST_VALUES` for columns with many values."""
    missing = [row for row, value in enumerate(values) if value is None or value == "" or value != value]
    absent = set(missing)
    present = [row for row in range(len(values)) if row not in absent]
    groups: dict[str, list[int]] = {}
    for row in present:
        groups.setdefault(str(values[row]), []).append(row)
    tail = [Slice(EMPTY, missing)] if missing else []
    is_numeric = all(isinstance(values[row], int | float) and not isinstance(values[row], bool) for row in present)
    if len(groups) > limit and is_numeric:
        quartiles = by_quartile([float(values[row]) for row in present])
        return [Slice(part.name, [present[i] for i in part.rows]) for part in quartiles] + tail
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    slices = [Slice(shorten(name, _LONGEST_NAME), rows) for name, rows in ordered[:limit]]
    rest = sorted(row for _, rows in ordered[limit:] for row in rows)
    return slices + ([Slice(OTHER, rest)] if rest else []) + tail
