"""Duplicates across a corpus: exact ones by their normal form, near ones by MinHash, LSH and true Jaccard.

    fingerprints ─ group by key ─ exact ─ bands ─ group by band ─ first × member ─ Jaccard ─ components ─ who is kept

Nothing here is quadratic: in a band each member is compared with the first, and those that prove different are
compared once more among themselves, a stated number of times. No list of pairs is ever held by one process.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from headstart.core.config import Section
from headstart.corpus.components import components
from headstart.corpus.engine import frame, load
from headstart.corpus.fingerprints import SignatureConfig, normal
from headstart.corpus.parts import size_of
from headstart.corpus.shingles import shingle_sets, words_of

if TYPE_CHECKING:
    from daft import DataFrame

SCHEMA = pa.schema([("doc", pa.int64()), ("kept", pa.int64()), ("kind", pa.string()), ("jaccard", pa.float64())])
Keep = Callable[["DataFrame", str], "DataFrame"]


class NearConfig(Section):
    """What makes near-duplicates."""

    jaccard: float = Field(0.8, gt=0, le=1, description="share of shingles in common that makes duplicates")
    signature: SignatureConfig = SignatureConfig()
    rounds: int = Field(3, ge=1, le=10, description="how often what differs from a band's first is compared anew")


class DuplicatesConfig(Section):
    """Which duplicates are dropped, and which of them stays."""

    near: NearConfig | None = Field(NearConfig(), description="near-duplicates; null for exact ones alone")
    keep: Literal["first", "longest"] = Field(
        "first",
        description="which stays: the first, as sources stand in the recipe and documents in their files; or the "
        "longest, and the first of equally long ones",
    )


def find(clean: Path, folder: Path, config: DuplicatesConfig) -> dict[str, Any]:
    """Write (doc, kept, kind, jaccard) for each document to drop, sorted by doc; return the sizes of all tables."""
    from daft import col, lit

    shutil.rmtree(folder, ignore_errors=True)
    sizes: dict[str, Any] = {}
    keep = _keeper(folder, sizes)
    marks = frame(clean / "fingerprints")
    exact = keep(_exact(marks), "exact")
    found = exact.with_columns({"kind": lit("exact"), "jaccard": lit(1.0)})
    if config.near is not None:
        left = marks.join(exact, on="doc", how="anti")
        near = _near(left, clean, config, keep)
        # What was kept of an exact group may itself be a near-duplicate of something else.
        moved = near.select(col("doc").alias("kept"), col("kept").alias("final"))
        found = found.join(moved, on="kept", how="left").select(
            "doc", col("final").fill_null(col("kept")).alias("kept"), "kind", "jaccard"
        )
        found = found.union_all(near.with_column("kind", lit("near")).select("doc", "kept", "kind", "jaccard"))
    keep(found.sort("doc"), "found")
    return sizes


def _keeper(folder: Path, sizes: dict[str, Any]) -> Keep:
    """Return a function that writes a frame into the folder, notes its size, and reads it back."""

    def keep(table: DataFrame, name: str) -> DataFrame:
        target = folder / name
        shutil.rmtree(target, ignore_errors=True)
        table.write_parquet(str(target), compression="zstd")
        sizes[name] = size_of(target)
        if not sizes[name]["rows"]:
            return load().from_arrow(table.schema().to_pyarrow_schema().empty_table())
        return frame(target)

    return keep


def _exact(marks: DataFrame) -> DataFrame:
    """Return (doc, kept) for each document whose normal form stands before it."""
    from daft import col

    groups = marks.groupby("key", "second_key").agg(col("doc").min().alias("kept"), col("doc").count().alias("members"))
    several = groups.where(col("members") > 1)
    return marks.join(several, on=["key", "second_key"]).where(col("doc") != col("kept")).select("doc", "kept")


def _near(marks: DataFrame, clean: Path, config: DuplicatesConfig, keep: Keep) -> DataFrame:
    """Return (doc, kept, jaccard) for each near-duplicate to be dropped."""
    from daft import col

    assert config.near is not None
    members = marks.select("doc", col("bands").alias("band")).explode("band")
    edges: DataFrame | None = None
    for number in range(config.near.rounds):
        pairs = keep(_pairs(members), f"pairs-{number}")
        compared = keep(_compared(pairs, clean, config.near), f"compared-{number}")
        alike = compared.where(col("jaccard") >= config.near.jaccard)
        edges = alike if edges is None else edges.union_all(alike)
        differ = compared.where(col("jaccard") < config.near.jaccard).select("doc", "root")
        members = pairs.join(differ, on=["doc", "root"], how="semi").select("doc", "band")
        if not compared.where(col("jaccard") < config.near.jaccard).count_rows():
            break
    assert edges is not None
    edges = keep(edges, "edges")
    rooted = components(edges.select("doc", "root"), keep)
    best = edges.groupby("doc").agg(col("jaccard").max())
    return keep(_kept(rooted, marks, best, config.keep), "near")


def _pairs(members: DataFrame) -> DataFrame:
    """Return (band, doc, root): each member of a band beside the first of it."""
    from daft import col

    firsts = members.groupby("band").agg(col("doc").min().alias("root"), col("doc").count().alias("members"))
    several = firsts.where(col("members") > 1).select("band", "root")
    return members.join(several, on="band").where(col("doc") != col("root")).select("band", "doc", "root")


def _compared(pairs: DataFrame, clean: Path, config: NearConfig) -> DataFrame:
    """Return (doc, root, jaccard) for each pair, from the texts of those documents that are in one."""
    from daft import DataType, col

    daft = load()
    distinct = pairs.select("doc", "root").distinct()
    named = distinct.select("doc").union_all(distinct.select(col("root").alias("doc"))).distinct()
    texts = frame(clean / "documents", "doc", "text").join(named, on="doc", how="semi")
    normals = texts.select("doc", normal(col("text")).alias("normal"))
    joined = distinct.join(normals, on="doc").join(
        normals.select(col("doc").alias("root"), col("normal").alias("other")), on="root"
    )
    words = config.signature.words

    @daft.func.batch(return_dtype=DataType.float64())  # type: ignore[untyped-decorator]
    def compare(one: Any, other: Any) -> list[float]:
        return jaccard(one.to_arrow(), other.to_arrow(), words)

    return joined.select("doc", "root", compare(col("normal"), col("other")).alias("jaccard"))


def jaccard(one: pa.Array, other: pa.Array, words: int) -> list[float]:
    """Return the share of shingles in common of each pair of normal forms."""
    both = zip(shingle_sets(words_of(one), words), shingle_sets(words_of(other), words), strict=True)
    found = []
    for left, right in both:
        common = len(np.intersect1d(left, right, assume_unique=True))
        found.append(common / (len(left) + len(right) - common))
    return found


def _kept(rooted: DataFrame, marks: DataFrame, best: DataFrame, order: str) -> DataFrame:
    """Choose who stays in each component: its first, which is its root, or its longest."""
    from daft import col

    if order == "first":
        return rooted.select("doc", col("root").alias("kept")).join(best, on="doc", how="left")
    everyone = rooted.union_all(rooted.select(col("root").alias("doc"), "root").distinct())
    sized = everyone.join(marks.select("doc", "characters"), on="doc")
    longest = sized.groupby("root").agg(col("characters").max().alias("most"))
    winners = sized.join(longest, on="root").where(col("characters") == col("most"))
    chosen = winners.groupby("root").agg(col("doc").min().alias("kept"))
    losers = everyone.join(chosen, on="root").where(col("doc") != col("kept")).select("doc", "kept")
    return losers.join(best, on="doc", how="left")
