"""The texts of Wikipedia, for scripts that read rather than train."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.parquet as pq
from side_by_side import DATA


def wikipedia() -> Iterator[str]:
    """Yield article after article."""
    for path in sorted((DATA / "corpora/wikipedia-en-2015").glob("*.parquet")):
        yield from pq.read_table(path, columns=["text"])["text"].to_pylist()


def megabytes_of_wikipedia(megabytes: float) -> Iterator[str]:
    """Yield articles until there are so many megabytes, from the first one again where they end."""
    left = megabytes * 1e6
    while left > 0:
        before = left
        for text in wikipedia():
            left -= len(text.encode())
            yield text
            if left <= 0:
                return
        if left == before:
            raise SystemExit(f"there is no Wikipedia in {DATA}; set HEADSTART_DATA to a folder with corpora/")
