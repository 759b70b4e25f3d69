"""The texts of Wikipedia, for scripts that read rather than train."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.parquet as pq
from side_by_side import DATA


def wikipedia() -> Iterator[str]:
    """Yield article after article."""
    for path in sorted((DATA / "corpora/wikipedia-en-2015").glob("*.parquet")):
        yield from pq.read_table(path, columns=["text"])["text"].to_pylist()
