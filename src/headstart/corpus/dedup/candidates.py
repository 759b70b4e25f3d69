"""The exact Jaccard similarity of many pairs of documents, in bounded memory whatever their number.

    documents ─ shingle sets, once ─ sent to the group of the pair's other document ─ compared there

Documents are processed in groups: ranges of parts with a limited number of characters in candidates. The two sets of a
pair meet in the group of its root; a set from another group is written to a file for that group. The table of pairs is
small and goes through the engine; texts and sets never do.
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
from headstart.corpus.dedup.fingerprints import normalize
from headstart.corpus.parts.engine import EngineConfig, evaluate, frame, load, run_tasks
from headstart.corpus.parts.files import part_file, size_of
from headstart.corpus.parts.shingles import Hashes, shingle_sets, words_of

if TYPE_CHECKING:
    from daft import DataFrame

COMPARED = pa.schema([("doc", pa.int64()), ("root", pa.int64()), ("jaccard", pa.float64())])
_SETS = pa.schema([("doc", pa.int64()), ("shingles", pa.large_list(pa.uint64()))])
_SENT = pa.schema([("doc", pa.int64()), ("root", pa.int64()), ("shingles", pa.large_list(pa.uint64()))])
_GROUP_CHARACTERS = 32_000_000
_MAX_GROUPS = 256
"""Each group may write a file for each other group. Beyond this number, groups become larger instead."""
_GROUPS_WITHOUT_PROCESSES = 4
"""With at most this many groups, starting processes takes longer than comparing the sets."""
_ROWS = 256


@dataclass(frozen=True)
class Candidates:
    """The documents that occur in any pair, their shingle sets, and the groups that they belong to."""

    folder: Path
    cuts: tuple[int, ...]
    """The first part of each group, followed by the part after the last group."""
    engine: EngineConfig

    @classmethod
    def gather(
        cls, clean: Path, folder: Path, docs: Path, characters: Mapping[int, int], words: int, engine: EngineConfig
    ) -> Candidates:
        """Write the shingle sets of the documents in a table; `characters` gives their total length in each part."""
        candidates = cls(folder, groups(characters), engine)
        candidates._run("write_shingles", {"clean": str(clean), "docs": str(docs), "words": words})
        return candidates

    def compare(self, pairs: Path, name: str, sizes: dict[str, Any]) -> DataFrame:
        """Return (doc, root, jaccard) for a table of distinct pairs sorted by doc; add table sizes to `sizes`."""
        target, sent = self.folder / name, self.folder / f"{name}-sent"
        self._run("send_sets", {"pairs": str(pairs), "target": str(sent)})
        sent_sizes = [size_of(group) for group in sorted(sent.iterdir())]
        sizes[f"{name}-sent"] = {key: sum(size[key] for size in sent_sizes) for key in ("rows", "bytes")}
        self._run("compare_sets", {"sent": str(sent), "target": str(target)})
        shutil.rmtree(sent)
        sizes[name] = size_of(target)
        return frame(target) if sizes[name]["rows"] else load().from_arrow(COMPARED.empty_table())

    def _run(self, function: str, settings: Mapping[str, Any]) -> None:
        """Run a function of this module on each group."""
        common = {"folder": str(self.folder), "cuts": self.cuts, **settings}
        tasks = [{**common, "group": number} for number in range(len(self.cuts) - 1)]
        if len(tasks) <= _GROUPS_WITHOUT_PROCESSES:
            for task in tasks:
                globals()[function](task)
            return
        for _ in run_tasks(f"{__name__}:{function}", tasks, self.engine):
            pass


def groups(characters: Mapping[int, int], max_characters: int | None = None) -> tuple[int, ...]:
    """Divide the parts, given their characters in candidates, into ranges of limited size; return the cuts."""
    limit = _GROUP_CHARACTERS if max_characters is None else max_characters
    limit = max(limit, -(-sum(characters.values()) // _MAX_GROUPS))
    cuts, held = [0], 0
    for part, size in sorted(characters.items()):
        if held and held + size > limit:
            cuts.append(part)
            held = 0
        held += size
    return (*cuts, max(characters, default=0) + 1)


def write_shingles(task: Mapping[str, Any]) -> None:
    """Write the shingle sets of the candidates in one group, and read no other texts."""
    candidates = _rows_of_group(Path(task["docs"]), "doc", task)["doc"].to_numpy()
    with _writer(_sets_path(task), _SETS) as out:
        for part in np.unique(candidates >> 32).tolist():
            in_part = candidates[candidates >> 32 == part]
            with pq.ParquetFile(part_file(Path(task["clean"]) / "documents", part)) as file:
                for group in range(file.num_row_groups):
                    docs = file.read_row_group(group, columns=["doc"])["doc"]
                    selected = np.isin(docs.to_numpy(), in_part, assume_unique=True)
                    if selected.any():
                        texts = file.read_row_group(group, columns=["text"])["text"].filter(pa.array(selected))
                        out.write_table(_sets_table(docs.filter(pa.array(selected)), texts, int(task["words"])))


def send_sets(task: Mapping[str, Any]) -> None:
    """Write the sets of one group's documents for the groups in which their pairs are compared."""
    cuts, group = task["cuts"], int(task["group"])
    pairs = _rows_of_group(Path(task["pairs"]), "doc", task)
    targets = np.searchsorted(cuts, pairs["root"].to_numpy() >> 32, side="right") - 1
    sets = _GroupSets(_sets_path(task))
    for other in np.unique(targets).tolist():
        of_group = pairs.filter(pa.array(targets == other))
        folder = Path(task["target"]) / f"group-{other:05d}"
        folder.mkdir(parents=True, exist_ok=True)
        with _writer(folder / f"from-{group:05d}.parquet", _SENT) as out:
            for start in range(0, len(of_group), _ROWS):
                rows = of_group.slice(start, _ROWS)
                # A set that is in the target group already need not be sent.
                lists = pa.nulls(len(rows), _SENT.field("shingles").type)
                lists = lists if other == group else sets.lists(rows["doc"].to_numpy())
                out.write_table(pa.table([rows["doc"], rows["root"], lists], schema=_SENT))


def compare_sets(task: Mapping[str, Any]) -> None:
    """Write the Jaccard similarity of each pair whose root is in one group."""
    sets, group = _GroupSets(_sets_path(task)), int(task["group"])
    with _writer(Path(task["target"]) / f"group-{group:05d}.parquet", COMPARED) as out:
        for path in sorted((Path(task["sent"]) / f"group-{group:05d}").glob("*.parquet")):
            with pq.ParquetFile(path) as file:
                compared = [_compare(file.read_row_group(number), sets) for number in range(file.num_row_groups)]
            out.write_table(pa.concat_tables(compared))


def jaccard(one: Hashes, other: Hashes) -> float:
    """Return the Jaccard similarity of two sorted sets."""
    common = len(np.intersect1d(one, other, assume_unique=True))
    return common / (len(one) + len(other) - common)


class _GroupSets:
    """The shingle sets of one group, in memory."""

    def __init__(self, path: Path) -> None:
        table = pq.read_table(path).combine_chunks()
        lists = table["shingles"].combine_chunks()
        self.docs: Ints = table["doc"].to_numpy()
        self.starts: Ints = lists.offsets.to_numpy()
        self.values: Hashes = lists.values.to_numpy()

    def get(self, doc: int) -> Hashes:
        index = int(np.searchsorted(self.docs, doc))
        shingles: Hashes = self.values[self.starts[index] : self.starts[index + 1]]
        return shingles

    def lists(self, docs: Ints) -> pa.Array:
        sets = [self.get(doc) for doc in docs.tolist()]
        starts = np.cumsum([0, *map(len, sets)])
        return pa.LargeListArray.from_arrays(pa.array(starts, pa.int64()), pa.array(np.concatenate(sets)))


def _compare(rows: pa.Table, sets: _GroupSets) -> pa.Table:
    lists = rows["shingles"].combine_chunks()
    starts, values, is_local = lists.offsets.to_numpy(), lists.values.to_numpy(), lists.is_null().to_pylist()
    similarities = []
    for i, (doc, root) in enumerate(zip(rows["doc"].to_pylist(), rows["root"].to_pylist(), strict=True)):
        shingles = sets.get(doc) if is_local[i] else values[starts[i] : starts[i + 1]]
        similarities.append(jaccard(shingles, sets.get(root)))
    return pa.table([rows["doc"], rows["root"], pa.array(similarities, pa.float64())], schema=COMPARED)


def _sets_table(docs: pa.ChunkedArray, texts: pa.ChunkedArray, words: int) -> pa.Table:
    from daft import col

    normals = evaluate(pa.table({"text": texts}), {"normal": normalize(col("text"))})["normal"]
    sets = shingle_sets(words_of(normals), words)
    starts = pa.array(np.cumsum([0, *map(len, sets)]), pa.int64())
    return pa.table([docs, pa.LargeListArray.from_arrays(starts, pa.array(np.concatenate(sets)))], schema=_SETS)


def _rows_of_group(folder: Path, column: str, task: Mapping[str, Any]) -> pa.Table:
    """Read the rows of a sorted table whose documents are in the task's group; other row groups are skipped."""
    first, last = (int(task["cuts"][int(task["group"]) + step]) << 32 for step in (0, 1))
    inside = (pc.field(column) >= first) & (pc.field(column) < last)
    return pq.read_table(folder, filters=inside)


def _sets_path(task: Mapping[str, Any]) -> Path:
    return Path(task["folder"]) / "shingles" / f"group-{int(task['group']):05d}.parquet"


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Hashes do not compress: a dictionary would only take time and space.
    return pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False)
