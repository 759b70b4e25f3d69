"""Duplicates in a corpus: exact ones by normalized text, near ones by MinHash, LSH and exact Jaccard similarity.

    fingerprints ─ group by key ─ exact ─ bands ─ group by band ─ first × member ─ Jaccard ─ components ─ kept documents

Algorithm: in a band, each member is compared with the first one. Those that differ are compared among themselves again,
`rounds` times at most, so that nothing is quadratic. Similar pairs form components. Of each component, one document is
kept (`keep`), and every other member is compared with it. Members that are not similar to it form new components from
the links among them. After `_MAX_TURNS` turns the remaining documents are kept, so that too few rather than too many
are dropped from a long chain of slowly changing versions.

Properties: every dropped document is similar to a kept one by the exact Jaccard similarity of the two, which is stored;
a link through other documents is not enough. The result depends only on the documents, not on the number of workers. No
process ever holds the list of all pairs.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pydantic import Field

from headstart.core.config import Section
from headstart.corpus.dedup.candidates import Candidates
from headstart.corpus.dedup.components import components
from headstart.corpus.dedup.fingerprints import SignatureConfig
from headstart.corpus.parts.engine import EngineConfig, frame, load
from headstart.corpus.parts.files import size_of

if TYPE_CHECKING:
    from daft import DataFrame

SCHEMA = pa.schema([("doc", pa.int64()), ("kept", pa.int64()), ("kind", pa.string()), ("jaccard", pa.float64())])
_NEAR = pa.schema([("doc", pa.int64()), ("kept", pa.int64()), ("jaccard", pa.float64())])
_MAX_TURNS = 20


class NearConfig(Section):
    """When two documents are near-duplicates."""

    jaccard: float = Field(0.8, gt=0, le=1, description="minimum Jaccard similarity of the shingles of duplicates")
    signature: SignatureConfig = SignatureConfig()
    rounds: int = Field(
        3, ge=1, le=10, description="how often members that differ from the first of their band are compared again"
    )


class DuplicatesConfig(Section):
    """Which duplicates are dropped, and which document of each group is kept."""

    near: NearConfig | None = Field(NearConfig(), description="near-duplicates; null drops exact duplicates only")
    keep: Literal["first", "longest"] = Field(
        "first",
        description="which document is kept: the first, in the order of the recipe's sources and their files; or the "
        "longest, and the first of equally long ones",
    )


def find(clean: Path, folder: Path, config: DuplicatesConfig, engine: EngineConfig | None = None) -> dict[str, Any]:
    """Write (doc, kept, kind, jaccard) for each document to drop, sorted by doc; return the sizes of all tables."""
    from daft import col, lit
    from daft.functions import when

    shutil.rmtree(folder, ignore_errors=True)
    search = _Search(clean, folder, config, engine or EngineConfig())
    marks = frame(clean / "fingerprints")
    exact = search.keep(_exact(marks, config.keep), "exact")
    dropped = exact.with_columns({"kind": lit("exact"), "jaccard": lit(1.0)})
    near = search.near(marks.join(exact, on="doc", how="anti")) if config.near is not None else None
    if near is not None:
        # The kept document of an exact group may be a near-duplicate of another document; then so are its copies.
        moved = near.select(col("doc").alias("kept"), col("kept").alias("final"), col("jaccard").alias("likeness"))
        joined = dropped.join(moved, on="kept", how="left")
        dropped = joined.select(
            "doc",
            col("final").fill_null(col("kept")).alias("kept"),
            when(col("final").is_null(), lit("exact")).otherwise(lit("near")).alias("kind"),
            col("likeness").fill_null(col("jaccard")).alias("jaccard"),
        )
        dropped = dropped.union_all(near.with_column("kind", lit("near")).select("doc", "kept", "kind", "jaccard"))
    search.keep(dropped.sort("doc"), "found")
    return search.sizes


def largest(folder: Path, number: int) -> list[tuple[int, int]]:
    """Return the documents for which most others were dropped, with their numbers, from the table that `find` wrote."""
    from daft import col

    counted = frame(folder, "doc", "kept").groupby("kept").agg(col("doc").count().alias("dropped"))
    top = counted.sort(["dropped", "kept"], desc=[True, False]).limit(number).to_pydict()
    return list(zip(top["kept"], top["dropped"], strict=True))


def _exact(marks: DataFrame, order: str) -> DataFrame:
    """Return (doc, kept) for each document with the normalized text of another that is kept."""
    from daft import col

    key = ["key", "second_key"]
    several = marks.groupby(*key).agg(col("doc").count().alias("members")).where(col("members") > 1)
    members = marks.select("doc", "characters", *key).join(several.select(*key), on=key)
    kept = _kept(members, key, order)
    return members.join(kept, on=key).where(col("doc") != col("kept")).select("doc", "kept")


def _kept(members: DataFrame, group: list[str], order: str) -> DataFrame:
    """Return the document that is kept of each group: its first, or the first of its longest."""
    from daft import col

    if order == "longest":
        longest = members.groupby(*group).agg(col("characters").max().alias("most"))
        members = members.join(longest, on=group).where(col("characters") == col("most"))
    return members.groupby(*group).agg(col("doc").min().alias("kept"))


class _Search:
    """A search for near-duplicates, and the sizes of the tables that it has written."""

    def __init__(self, clean: Path, folder: Path, config: DuplicatesConfig, engine: EngineConfig) -> None:
        self.clean, self.folder, self.config, self.engine = clean, folder, config, engine
        self.sizes: dict[str, Any] = {}

    def keep(self, table: DataFrame, name: str, prefix: str = "") -> DataFrame:
        """Write a frame to the folder, record its size, and read it back."""
        name = prefix + name
        target = self.folder / name
        table.write_parquet(str(target), compression="zstd")
        self.sizes[name] = size_of(target)
        if not self.sizes[name]["rows"]:
            return load().from_arrow(table.schema().to_pyarrow_schema().empty_table())
        return frame(target)

    def near(self, marks: DataFrame) -> DataFrame:
        """Return (doc, kept, jaccard) for each near-duplicate to drop."""
        from daft import col

        near = self.config.near
        assert near is not None
        empty = load().from_arrow(_NEAR.empty_table())
        members = marks.select("doc", col("bands").alias("band")).explode("band")
        candidates: Candidates | None = None
        edges: DataFrame | None = None
        for number in range(near.rounds):
            pairs = self.keep(_pairs(members), f"pairs-{number}")
            if not self.sizes[f"pairs-{number}"]["rows"]:
                break
            candidates = candidates or self._candidates(pairs, marks)
            compared = self._compare(candidates, pairs.select("doc", "root").distinct(), f"compared-{number}")
            similar = compared.where(col("jaccard") >= near.jaccard)
            edges = similar if edges is None else edges.union_all(similar)
            differ = compared.where(col("jaccard") < near.jaccard).select("doc", "root")
            members = pairs.join(differ, on=["doc", "root"], how="semi").select("doc", "band")
        if candidates is None or edges is None:
            return empty
        edges = self.keep(edges.distinct(), "edges")
        return self._select(edges, marks, candidates) if self.sizes["edges"]["rows"] else empty

    def _candidates(self, pairs: DataFrame, marks: DataFrame) -> Candidates:
        """Gather all documents that occur in a pair; later rounds have no others."""
        from daft import DataType, col

        both = pairs.select("doc").union_all(pairs.select(col("root").alias("doc"))).distinct()
        docs = self.keep(both.sort("doc"), "candidates")
        sized = docs.join(marks.select("doc", "characters"), on="doc")
        part = (col("doc") // (1 << 32)).cast(DataType.int64()).alias("part")
        sums = sized.select(part, "characters").groupby("part").agg(col("characters").sum()).to_pydict()
        characters = dict(zip(sums["part"], sums["characters"], strict=True))
        assert self.config.near is not None
        words = self.config.near.signature.words
        path = self.folder / "candidates"
        candidates = Candidates.gather(self.clean, self.folder, path, characters, words, self.engine)
        self.sizes["shingles"] = size_of(self.folder / "shingles")
        return candidates

    def _compare(self, candidates: Candidates, pairs: DataFrame, name: str) -> DataFrame:
        self.keep(pairs.sort(["doc", "root"]), f"{name}-pairs")
        return candidates.compare(self.folder / f"{name}-pairs", name, self.sizes)

    def _select(self, edges: DataFrame, marks: DataFrame, candidates: Candidates) -> DataFrame:
        """Return (doc, kept, jaccard) for each document to drop, with the similarity of these two documents."""
        from daft import col

        assert self.config.near is not None
        links, dropped = edges.select("doc", "root"), list[Any]()
        for turn in range(_MAX_TURNS):
            rooted = components(links, partial(self.keep, prefix=f"turn-{turn}-"))
            members = rooted.union_all(rooted.select(col("root").alias("doc"), "root").distinct())
            sized = members.join(marks.select("doc", "characters"), on="doc")
            others = members.join(_kept(sized, ["root"], self.config.keep), on="root").where(col("doc") != col("kept"))
            pairs = self._similarities(others.select("doc", "kept"), edges, candidates, turn)
            pairs = self.keep(pairs, f"told-{turn}")
            dropped.append(pairs.where(col("jaccard") >= self.config.near.jaccard))
            left = pairs.where(col("jaccard") < self.config.near.jaccard).select("doc")
            links = links.join(left, on="doc", how="semi")
            links = links.join(left.select(col("doc").alias("root")), on="root", how="semi")
            links = self.keep(links, f"links-{turn}")
            if not self.sizes[f"links-{turn}"]["rows"]:
                break
        near = dropped[0]
        for table in dropped[1:]:
            near = near.union_all(table)
        return self.keep(near, "near")

    def _similarities(self, others: DataFrame, edges: DataFrame, candidates: Candidates, turn: int) -> DataFrame:
        """Add the similarity to pairs (doc, kept); pairs among the edges are not compared again."""
        from daft import col
        from daft.functions import when

        swapped = col("doc") < col("kept")
        pairs = others.select(
            "doc", "kept",
            when(swapped, col("kept")).otherwise(col("doc")).alias("high"),
            when(swapped, col("doc")).otherwise(col("kept")).alias("low"),
        )  # fmt: skip
        ends = ["high", "low"]
        known = edges.select(col("doc").alias("high"), col("root").alias("low"), "jaccard")
        unknown = pairs.join(known, on=ends, how="anti").select(col("high").alias("doc"), col("low").alias("root"))
        self.keep(unknown.sort(["doc", "root"]), f"asked-{turn}")
        if self.sizes[f"asked-{turn}"]["rows"]:
            new = candidates.compare(self.folder / f"asked-{turn}", f"answered-{turn}", self.sizes)
            known = known.union_all(new.select(col("doc").alias("high"), col("root").alias("low"), "jaccard"))
        return pairs.join(known, on=ends).select("doc", "kept", "jaccard")


def _pairs(members: DataFrame) -> DataFrame:
    """Return (band, doc, root): each member of a band with the first member."""
    from daft import col

    firsts = members.groupby("band").agg(col("doc").min().alias("root"), col("doc").count().alias("members"))
    several = firsts.where(col("members") > 1).select("band", "root")
    return members.join(several, on="band").where(col("doc") != col("root")).select("band", "doc", "root")
