"""What the order of rows costs and gives, without training: traffic from a store, and how mixed the batches are.

The store is in memory and counts what is read. 14 M tokens, rows of 128, batches of 32 rows, one epoch, and a cache for
a quarter of the tokens. Print one line of JSON per order: `python docs/results/shuffle_traffic.py`
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from headstart.core.data import Ints
from headstart.core.randomness import permute
from headstart.corpus.read import blocks
from headstart.training.shuffling import BlockShuffle

TOKENS, WIDTH, BATCH = 14_000_000, 128, 32
DOCUMENT = 8
"""Rows of a document, about 1,000 tokens."""
ORDERS: dict[str, tuple[int, int] | None] = {
    "all rows": None, "buffers of 1 M, blocks of 128 k": (1 << 20, 1 << 17),
    "buffers of 1 M, blocks of 16 k": (1 << 20, 1 << 14), "buffers of 256 k, blocks of 32 k": (1 << 18, 1 << 15),
}  # fmt: skip
"""Tokens of a buffer and of a block, by name."""
DTYPE = np.dtype("<u2")


class CountingReader:
    """An object in memory; `sizes` are those of the ranges that were read."""

    content = np.zeros(TOKENS, dtype=DTYPE).tobytes()
    sizes: list[int] = []  # noqa: RUF012  # shared by the threads

    def __init__(self, _: Any) -> None:
        """Take an object, of which there is only one."""

    def read(self, start: int, stop: int) -> bytes:
        """Return a range and record its size."""
        self.sizes.append(stop - start)
        return self.content[start:stop]

    def verify(self) -> None:
        """Do nothing: the object does not change."""


def traffic(order: Ints, shuffle: BlockShuffle | None, block_tokens: int) -> dict[str, float]:
    """Read one epoch through the cache and return what was requested."""
    CountingReader.sizes.clear()
    stored: Any = SimpleNamespace(size=TOKENS * DTYPE.itemsize)
    stretch = block_tokens * DTYPE.itemsize
    cache = blocks.BlockCache([stored], stored.size // 4, Path(tempfile.mkdtemp()), stretch)
    for start in range(0, len(order) - BATCH, BATCH):
        if shuffle is not None:
            for low, high in shuffle.ahead(start, start + BATCH, len(order), 0):
                cache.prefetch(0, low * WIDTH, high * WIDTH, DTYPE)
        cache.take(0, order[start : start + BATCH, None] * WIDTH + np.arange(WIDTH), DTYPE)
    total = sum(CountingReader.sizes)
    return {"requests": len(CountingReader.sizes), "MB": round(total / 1e6, 1), "× corpus": total / stored.size}


def mixing(order: Ints) -> dict[str, float]:
    """Return how far the rows of a batch are from a random draw of the corpus."""
    batches = order[: len(order) // BATCH * BATCH].reshape(-1, BATCH)
    quarters = [np.bincount(batch * 4 // len(order), minlength=4).max() / BATCH for batch in batches]
    same = [1 - len(np.unique(batch // DOCUMENT)) / BATCH for batch in batches]
    return {
        "largest share of a quarter of the corpus": float(np.mean(quarters)),
        "rows whose document is in the batch already": float(np.mean(same)),
        "median distance of successive rows": float(np.median(np.abs(np.diff(order)))) / len(order),
    }


def main() -> None:
    """Print one line of JSON per order."""
    blocks.ObjectReader = CountingReader  # type: ignore[misc,assignment]
    positions = np.arange(TOKENS // WIDTH)
    for name, sizes in ORDERS.items():
        shuffle = None if sizes is None else BlockShuffle(sizes[1] // WIDTH, sizes[0] // sizes[1])
        count = len(positions)
        order = permute(positions, count, 0, 0) if shuffle is None else shuffle.rows(positions, count, 0, 0)
        found = traffic(order, shuffle, 0 if sizes is None else sizes[1]) | mixing(order)
        print(json.dumps({"order": name} | {key: round(value, 4) for key, value in found.items()}), flush=True)


if __name__ == "__main__":
    main()
