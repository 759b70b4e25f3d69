"""The true Jaccard of many pairs of documents, in bounded memory whatever their number.

    documents ─ shingle sets, once ─ sent to the group of the pair's other document ─ compared there

Documents are held group by group: a group is a range of parts with so many characters of candidates in it. The sets of
a pair meet in the group of its root: those that lie in another group are written into a file for it. A table of pairs
is small and moves through the engine; texts and sets never do.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headstart.core.data import Ints
from headstart.corpus.dedup.fingerprints import normal
from headstart.corpus.parts.engine import EngineConfig, evaluate, frame, load, run_tasks
from headstart.corpus.parts.files import part_file, size_of
from headstart.corpus.parts.shingles import Hashes, shingle_sets, words_of

if TYPE_CHECKING:
    from daft import DataFrame

COMPARED = pa.schema([("doc", pa.int64()), ("root", pa.int64()), ("jaccard", pa.float64())])
_SETS = pa.schema([("doc", pa.int64()), ("shingles", pa.large_list(pa.uint64()))])
_SENT = pa.schema([("doc", pa.int64()), ("root", pa.int64()), ("shingles", pa.large_list(pa.uint64()))])
_GROUP_CHARACTERS = 32_000_000
_MOST_GROUPS = 256
"""Each group may write a file for each other, so that from about this number on groups grow instead."""
_GROUPS_WITHOUT_PROCESSES = 4
"""Processes take longer to start than so little takes to be compared."""
_ROWS = 256


@dataclass(frozen=True)
class Candidates:
    """Documents that are in some pair, the sets of their shingles, and the groups that they lie in."""

    folder: Path
    cuts: tuple[int, ...]
    """The first part of each group, and the part behind the last one."""
    engine: EngineConfig

    @classmethod
    def gather(
        cls, clean: Path, folder: Path, docs: Path, characters: Mapping[int, int], words: int, engine: EngineConfig
    ) -> Candidates:
        """Write the shingle sets of the documents that a table names, given the characters of them in each part."""
        made = cls(folder, groups(characters), engine)
        made._tasks("shingled", {"clean": str(clean), "docs": str(docs), "words": words})
        return made

    def compare(self, pairs: Path, name: str, sizes: dict[str, Any]) -> DataFrame:
        """Return (doc, root, jaccard) for a table of different pairs, sorted by doc, and note what was written."""
        target, sent = self.folder / name, self.folder / f"{name}-sent"
        self._tasks("sent", {"pairs": str(pairs), "target": str(sent)})
        told = [size_of(group) for group in sorted(sent.iterdir())]
        sizes[f"{name}-sent"] = {key: sum(one[key] for one in told) for key in ("rows", "bytes")}
        self._tasks("matched", {"sent": str(sent), "target": str(target)})
        shutil.rmtree(sent)
        sizes[name] = size_of(target)
        return frame(target) if sizes[name]["rows"] else load().from_arrow(COMPARED.empty_table())

    def _tasks(self, function: str, settings: Mapping[str, Any]) -> None:
        common = {"folder": str(self.folder), "cuts": self.cuts, **settings}
        tasks = [{**common, "group": number} for number in range(len(self.cuts) - 1)]
        if len(tasks) <= _GROUPS_WITHOUT_PROCESSES:
            for task in tasks:
                globals()[function](task)
            return
        for _ in run_tasks(f"{__name__}:{function}", tasks, self.engine):
            pass


def groups(characters: Mapping[int, int], most: int | None = None) -> tuple[int, ...]:
    """Cut parts, given the characters of candidates in each, into ranges of so many characters or of one part."""
    limit = max(_GROUP_CHARACTERS if most is None else most, -(-sum(characters.values()) // _MOST_GROUPS))
    cuts, held = [0], 0
    for part, size in sorted(characters.items()):
        if held and held + size > limit:
            cuts.append(part)
            held = 0
        held += size
    return (*cuts, max(characters, default=0) + 1)


def shingled(task: Mapping[str, Any]) -> None:
    """Write the shingle sets of one group's candidates; of other texts nothing is read."""
    wanted = _rows_between(Path(task["docs"]), "doc", task)["doc"].to_numpy()
    with _writer(_sets_of(task), _SETS) as out:
        for part in np.unique(wanted >> 32).tolist():
            mine = wanted[wanted >> 32 == part]
            with pq.ParquetFile(part_file(Path(task["clean"]) / "documents", part)) as file:
                for group in range(file.num_row_groups):
                    docs = file.read_row_group(group, columns=["doc"])["doc"]
                    chosen = np.isin(docs.to_numpy(), mine, assume_unique=True)
                    if chosen.any():
                        texts = file.read_row_group(group, columns=["text"])["text"].filter(pa.array(chosen))
                        out.write_table(_sets(docs.filter(pa.array(chosen)), texts, int(task["words"])))


def sent(task: Mapping[str, Any]) -> None:
    """Write the sets of one group's documents for the groups in which their pairs are compared."""
    cuts, group = task["cuts"], int(task["group"])
    pairs = _rows_between(Path(task["pairs"]), "doc", task)
    where = np.searchsorted(cuts, pairs["root"].to_numpy() >> 32, side="right") - 1
    held = _Held(_sets_of(task))
    for other in np.unique(where).tolist():
        mine = pairs.filter(pa.array(where == other))
        folder = Path(task["target"]) / f"group-{other:05d}"
        folder.mkdir(parents=True, exist_ok=True)
        with _writer(folder / f"from-{group:05d}.parquet", _SENT) as out:
            for start in range(0, len(mine), _ROWS):
                some = mine.slice(start, _ROWS)
                # What lies in the group already need not be sent.
                lists = pa.nulls(len(some), _SENT.field("shingles").type)
                lists = lists if other == group else held.lists(some["doc"].to_numpy())
                out.write_table(pa.table([some["doc"], some["root"], lists], schema=_SENT))


def matched(task: Mapping[str, Any]) -> None:
    """Write the Jaccard of each pair whose root lies in one group."""
    held, group = _Held(_sets_of(task)), int(task["group"])
    with _writer(Path(task["target"]) / f"group-{group:05d}.parquet", COMPARED) as out:
        for path in sorted((Path(task["sent"]) / f"group-{group:05d}").glob("*.parquet")):
            with pq.ParquetFile(path) as file:
                found = [_matched(file.read_row_group(number), held) for number in range(file.num_row_groups)]
            out.write_table(pa.concat_tables(found))


def jaccard(one: Hashes, other: Hashes) -> float:
    """Return the share that two sorted sets have in common."""
    common = len(np.intersect1d(one, other, assume_unique=True))
    return common / (len(one) + len(other) - common)


class _Held:
    """The sets of one group in memory."""

    def __init__(self, path: Path) -> None:
        table = pq.read_table(path).combine_chunks()
        lists = table["shingles"].combine_chunks()
        self.docs: Ints = table["doc"].to_numpy()
        self.starts: Ints = lists.offsets.to_numpy()
        self.values: Hashes = lists.values.to_numpy()

    def one(self, doc: int) -> Hashes:
        place = int(np.searchsorted(self.docs, doc))
        found: Hashes = self.values[self.starts[place] : self.starts[place + 1]]
        return found

    def lists(self, docs: Ints) -> pa.Array:
        sets = [self.one(doc) for doc in docs.tolist()]
        starts = np.cumsum([0, *map(len, sets)])
        return pa.LargeListArray.from_arrays(pa.array(starts, pa.int64()), pa.array(np.concatenate(sets)))


def _matched(rows: pa.Table, held: _Held) -> pa.Table:
    lists = rows["shingles"].combine_chunks()
    starts, values, here = lists.offsets.to_numpy(), lists.values.to_numpy(), lists.is_null().to_pylist()
    found = []
    for place, (doc, root) in enumerate(zip(rows["doc"].to_pylist(), rows["root"].to_pylist(), strict=True)):
        own = held.one(doc) if here[place] else values[starts[place] : starts[place + 1]]
        found.append(jaccard(own, held.one(root)))
    return pa.table([rows["doc"], rows["root"], pa.array(found, pa.float64())], schema=COMPARED)


def _sets(docs: pa.ChunkedArray, texts: pa.ChunkedArray, words: int) -> pa.Table:
    from daft import col

    normals = evaluate(pa.table({"text": texts}), {"normal": normal(col("text"))})["normal"]
    sets = shingle_sets(words_of(normals), words)
    starts = pa.array(np.cumsum([0, *map(len, sets)]), pa.int64())
    return pa.table([docs, pa.LargeListArray.from_arrays(starts, pa.array(np.concatenate(sets)))], schema=_SETS)


def _rows_between(folder: Path, column: str, task: Mapping[str, Any]) -> pa.Table:
    """Read the rows of a sorted table whose documents lie in the task's group; of other files nothing is read."""
    first, last = (int(task["cuts"][int(task["group"]) + step]) << 32 for step in (0, 1))
    inside = (pc.field(column) >= first) & (pc.field(column) < last)
    return pq.read_table(folder, filters=inside)


def _sets_of(task: Mapping[str, Any]) -> Path:
    return Path(task["folder"]) / "shingles" / f"group-{int(task['group']):05d}.parquet"


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Hashes do not compress: their dictionary would only take time and room.
    return pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False)
