"""The texts of Wikipedia, for benchmarks that do not train."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.parquet as pq
from side_by_side import DATA


def wikipedia() -> Iterator[str]:
    """Yield the articles in order."""
    for path in sorted((DATA / "corpora/wikipedia-en-2015").glob("*.parquet")):
        yield from pq.read_table(path, columns=["text"])["text"].to_pylist()


def megabytes_of_wikipedia(megabytes: float) -> Iterator[str]:
    """Yield articles up to a number of megabytes, starting over after the last article."""
    left = megabytes * 1e6
    while left > 0:
        before = left
        for text in wikipedia():
            left -= len(text.encode())
            yield text
            if left <= 0:
                return
        if left == before:
            raise SystemExit(f"{DATA} has no corpora/wikipedia-en-2015. Set HEADSTART_DATA to the data folder.")
