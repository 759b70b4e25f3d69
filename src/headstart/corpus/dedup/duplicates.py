"""Duplicates across a corpus: exact ones by their normal form, near ones by MinHash, LSH and true Jaccard.

    fingerprints ─ group by key ─ exact ─ bands ─ group by band ─ first × member ─ Jaccard ─ components ─ who is kept

Nothing here is quadratic: in a band each member is compared with the first, and those that prove different are
compared once more among themselves, a stated number of times. No list of pairs is ever held by one process.

What is dropped is alike with a document that is kept, by their own true Jaccard, which is stated: being linked to it by
others is not enough. Of each component the first by the stated order is kept, every other member is compared with it,
and those that are not alike form components anew by the links among them. After `_MOST_TURNS` of this what is left
stays, so that a long chain of slowly changing versions loses too little rather than too much. All of this depends on
the documents alone, and not on who does the work.
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
_MOST_TURNS = 20


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


def find(clean: Path, folder: Path, config: DuplicatesConfig, engine: EngineConfig | None = None) -> dict[str, Any]:
    """Write (doc, kept, kind, jaccard) for each document to drop, sorted by doc; return the sizes of all tables."""
    from daft import col, lit
    from daft.functions import when

    shutil.rmtree(folder, ignore_errors=True)
    search = _Search(clean, folder, config, engine or EngineConfig())
    marks = frame(clean / "fingerprints")
    exact = search.keep(_exact(marks, config.keep), "exact")
    found = exact.with_columns({"kind": lit("exact"), "jaccard": lit(1.0)})
    near = search.near(marks.join(exact, on="doc", how="anti")) if config.near is not None else None
    if near is not None:
        # What was kept of an exact group may itself be a near-duplicate of something else; then so are its copies.
        moved = near.select(col("doc").alias("kept"), col("kept").alias("final"), col("jaccard").alias("likeness"))
        joined = found.join(moved, on="kept", how="left")
        found = joined.select(
            "doc",
            col("final").fill_null(col("kept")).alias("kept"),
            when(col("final").is_null(), lit("exact")).otherwise(lit("near")).alias("kind"),
            col("likeness").fill_null(col("jaccard")).alias("jaccard"),
        )
        found = found.union_all(near.with_column("kind", lit("near")).select("doc", "kept", "kind", "jaccard"))
    search.keep(found.sort("doc"), "found")
    return search.sizes


def largest(folder: Path, number: int) -> list[tuple[int, int]]:
    """Return the documents for which most others were dropped, and how many, out of the table that `find` wrote."""
    from daft import col

    counted = frame(folder, "doc", "kept").groupby("kept").agg(col("doc").count().alias("dropped"))
    top = counted.sort(["dropped", "kept"], desc=[True, False]).limit(number).to_pydict()
    return list(zip(top["kept"], top["dropped"], strict=True))


def _exact(marks: DataFrame, order: str) -> DataFrame:
    """Return (doc, kept) for each document whose normal form another has that comes before it."""
    from daft import col

    key = ["key", "second_key"]
    several = marks.groupby(*key).agg(col("doc").count().alias("members")).where(col("members") > 1)
    members = marks.select("doc", "characters", *key).join(several.select(*key), on=key)
    chosen = _firsts(members, key, order)
    return members.join(chosen, on=key).where(col("doc") != col("kept")).select("doc", "kept")


def _firsts(members: DataFrame, group: list[str], order: str) -> DataFrame:
    """Return the document that each group keeps: its first, or the first of its longest."""
    from daft import col

    if order == "longest":
        longest = members.groupby(*group).agg(col("characters").max().alias("most"))
        members = members.join(longest, on=group).where(col("characters") == col("most"))
    return members.groupby(*group).agg(col("doc").min().alias("kept"))


class _Search:
    """A search for near-duplicates on its way, with the tables that it has written."""

    def __init__(self, clean: Path, folder: Path, config: DuplicatesConfig, engine: EngineConfig) -> None:
        self.clean, self.folder, self.config, self.engine = clean, folder, config, engine
        self.sizes: dict[str, Any] = {}

    def keep(self, table: DataFrame, name: str, prefix: str = "") -> DataFrame:
        """Write a frame into the folder, note its size, and read it back."""
        name = prefix + name
        target = self.folder / name
        table.write_parquet(str(target), compression="zstd")
        self.sizes[name] = size_of(target)
        if not self.sizes[name]["rows"]:
            return load().from_arrow(table.schema().to_pyarrow_schema().empty_table())
        return frame(target)

    def near(self, marks: DataFrame) -> DataFrame:
        """Return (doc, kept, jaccard) for each near-duplicate to be dropped."""
        from daft import col

        near = self.config.near
        assert near is not None
        nothing = load().from_arrow(_NEAR.empty_table())
        members = marks.select("doc", col("bands").alias("band")).explode("band")
        candidates: Candidates | None = None
        edges: DataFrame | None = None
        for number in range(near.rounds):
            pairs = self.keep(_pairs(members), f"pairs-{number}")
            if not self.sizes[f"pairs-{number}"]["rows"]:
                break
            candidates = candidates or self._candidates(pairs, marks)
            compared = self._compared(candidates, pairs.select("doc", "root").distinct(), f"compared-{number}")
            alike = compared.where(col("jaccard") >= near.jaccard)
            edges = alike if edges is None else edges.union_all(alike)
            differ = compared.where(col("jaccard") < near.jaccard).select("doc", "root")
            members = pairs.join(differ, on=["doc", "root"], how="semi").select("doc", "band")
        if candidates is None or edges is None:
            return nothing
        edges = self.keep(edges.distinct(), "edges")
        return self._kept(edges, marks, candidates) if self.sizes["edges"]["rows"] else nothing

    def _candidates(self, pairs: DataFrame, marks: DataFrame) -> Candidates:
        """Gather all documents that are in a pair: later rounds have no others."""
        from daft import DataType, col

        both = pairs.select("doc").union_all(pairs.select(col("root").alias("doc"))).distinct()
        named = self.keep(both.sort("doc"), "candidates")
        sized = named.join(marks.select("doc", "characters"), on="doc")
        part = (col("doc") // (1 << 32)).cast(DataType.int64()).alias("part")
        sums = sized.select(part, "characters").groupby("part").agg(col("characters").sum()).to_pydict()
        characters = dict(zip(sums["part"], sums["characters"], strict=True))
        assert self.config.near is not None
        words = self.config.near.signature.words
        made = Candidates.gather(self.clean, self.folder, self.folder / "candidates", characters, words, self.engine)
        self.sizes["shingles"] = size_of(self.folder / "shingles")
        return made

    def _compared(self, candidates: Candidates, pairs: DataFrame, name: str) -> DataFrame:
        self.keep(pairs.sort(["doc", "root"]), f"{name}-pairs")
        return candidates.compare(self.folder / f"{name}-pairs", name, self.sizes)

    def _kept(self, edges: DataFrame, marks: DataFrame, candidates: Candidates) -> DataFrame:
        """Return who is dropped for whom, by the Jaccard of these two."""
        from daft import col

        assert self.config.near is not None
        links, dropped = edges.select("doc", "root"), list[Any]()
        for turn in range(_MOST_TURNS):
            rooted = components(links, partial(self.keep, prefix=f"turn-{turn}-"))
            everyone = rooted.union_all(rooted.select(col("root").alias("doc"), "root").distinct())
            sized = everyone.join(marks.select("doc", "characters"), on="doc")
            others = everyone.join(_firsts(sized, ["root"], self.config.keep), on="root").where(
                col("doc") != col("kept")
            )
            told = self.keep(self._told(others.select("doc", "kept"), edges, candidates, turn), f"told-{turn}")
            dropped.append(told.where(col("jaccard") >= self.config.near.jaccard))
            left = told.where(col("jaccard") < self.config.near.jaccard).select("doc")
            links = links.join(left, on="doc", how="semi")
            links = links.join(left.select(col("doc").alias("root")), on="root", how="semi")
            links = self.keep(links, f"links-{turn}")
            if not self.sizes[f"links-{turn}"]["rows"]:
                break
        found = dropped[0]
        for more in dropped[1:]:
            found = found.union_all(more)
        return self.keep(found, "near")

    def _told(self, others: DataFrame, edges: DataFrame, candidates: Candidates, turn: int) -> DataFrame:
        """Return (doc, kept, jaccard) of documents and those kept of their components; known pairs are not redone."""
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
        asked = pairs.join(known, on=ends, how="anti").select(col("high").alias("doc"), col("low").alias("root"))
        asked = self.keep(asked.sort(["doc", "root"]), f"asked-{turn}")
        if self.sizes[f"asked-{turn}"]["rows"]:
            new = candidates.compare(self.folder / f"asked-{turn}", f"answered-{turn}", self.sizes)
            known = known.union_all(new.select(col("doc").alias("high"), col("root").alias("low"), "jaccard"))
        return pairs.join(known, on=ends).select("doc", "kept", "jaccard")


def _pairs(members: DataFrame) -> DataFrame:
    """Return (band, doc, root): each member of a band beside the first of it."""
    from daft import col

    firsts = members.groupby("band").agg(col("doc").min().alias("root"), col("doc").count().alias("members"))
    several = firsts.where(col("members") > 1).select("band", "root")
    return members.join(several, on="band").where(col("doc") != col("root")).select("band", "doc", "root")
