"""Connected components of a graph that no single process holds: large-star and small-star, by joins and group-bys.

Kiveris et al. 2014, "Connected Components in MapReduce and Beyond": every step links neighbors to the smallest one
known. After O(log² n) steps, two or three in practice, each component is a star around its smallest member.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from daft import DataFrame

_MAX_ROUNDS = 50


def components(edges: DataFrame, keep: Callable[[DataFrame, str], DataFrame]) -> DataFrame:
    """Return (doc, root) for each member except the root itself, given edges (doc, root) with doc > root.

    `keep` writes a frame under a name and reads it back, so that the query plan does not grow from round to round.
    """
    before = -1
    for number in range(_MAX_ROUNDS):
        edges = keep(_small_star(_large_star(edges)), f"round-{number}")
        fingerprint = _fingerprint(edges)
        if fingerprint == before:
            return edges
        before = fingerprint
    raise RuntimeError(f"components did not converge in {_MAX_ROUNDS} rounds")


def _large_star(edges: DataFrame) -> DataFrame:
    """Link the larger neighbors of each document to the smallest of itself and all its neighbors."""
    from daft import col
    from daft.functions import when

    both = edges.union_all(edges.select(col("root").alias("doc"), col("doc").alias("root")))
    smallest = both.groupby("doc").agg(col("root").min().alias("least"))
    joined = both.join(smallest, on="doc")
    least = when(col("least") < col("doc"), col("least")).otherwise(col("doc"))
    larger = joined.where(col("root") > col("doc")).select(col("root").alias("doc"), least.alias("root"))
    return larger.distinct()


def _small_star(edges: DataFrame) -> DataFrame:
    """Link each document and its smaller neighbors to the smallest of these neighbors."""
    from daft import col

    smallest = edges.groupby("doc").agg(col("root").min().alias("least"))
    joined = edges.join(smallest, on="doc")
    neighbors = joined.where(col("root") != col("least")).select(col("root").alias("doc"), col("least").alias("root"))
    return neighbors.union_all(smallest.select(col("doc"), col("least").alias("root"))).distinct()


def _fingerprint(edges: DataFrame) -> int:
    """Return a number that depends on the set of edges."""
    from daft import DataType, col
    from daft.functions import hash as hashed

    mark = (hashed(col("doc"), col("root")) % (1 << 31)).cast(DataType.int64())
    total = edges.select(mark.alias("mark")).agg(col("mark").sum().alias("sum"), col("mark").count().alias("count"))
    row = total.to_pydict()
    return int(row["sum"][0] or 0) * 31 + int(row["count"][0])
