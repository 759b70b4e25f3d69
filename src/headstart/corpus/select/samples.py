"""Documents drawn at random out of files, the same ones for the same seed, without reading the texts of the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from headstart.corpus.select.proportions import chances

_COLUMNS = ["id", "source", "language", "text"]


def draw(files: Sequence[Path], number: int, seed: int) -> list[dict[str, Any]]:
    """Return so many documents, chosen by their keys."""
    drawn: list[tuple[float, Path, int]] = []
    for path in files:
        numbers = chances(pq.read_table(path, columns=["key"])["key"].to_numpy(), seed, "sample")
        drawn += [(float(numbers[place]), path, int(place)) for place in np.argsort(numbers, kind="stable")[:number]]
    rows: list[dict[str, Any]] = []
    for _, path, place in sorted(drawn)[:number]:
        rows += _row(path, place)
    return rows


def _row(path: Path, place: int) -> list[dict[str, Any]]:
    """Read one row; of the texts, those of its row group alone."""
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if place < rows:
                return file.read_row_group(group, columns=_COLUMNS).slice(place, 1).to_pylist()
            place -= rows
    return []
