"""Documents drawn at random from files: the same for the same seed, without reading the texts of the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from headstart.corpus.select.proportions import uniform

_COLUMNS = ["id", "source", "language", "text"]


def draw(files: Sequence[Path], count: int, seed: int) -> list[dict[str, Any]]:
    """Return `count` documents, selected by their keys."""
    drawn: list[tuple[float, Path, int]] = []
    for path in files:
        numbers = uniform(pq.read_table(path, columns=["key"])["key"].to_numpy(), seed, "sample")
        drawn += [(float(numbers[row]), path, int(row)) for row in np.argsort(numbers, kind="stable")[:count]]
    rows: list[dict[str, Any]] = []
    for _, path, row in sorted(drawn)[:count]:
        rows += _read_row(path, row)
    return rows


def _read_row(path: Path, row: int) -> list[dict[str, Any]]:
    """Read one row; only the row group that contains it is decoded."""
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if row < rows:
                return file.read_row_group(group, columns=_COLUMNS).slice(row, 1).to_pylist()
            row -= rows
    return []
