"""Lines and paragraphs that stand in many documents: menus, notices, signatures. They are taken out of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from headstart.core.config import Section
from headstart.core.contracts import Bools, Ints
from headstart.corpus.engine import evaluate
from headstart.corpus.shingles import Hashes, mixed
from headstart.corpus.steps import changed, flat

if TYPE_CHECKING:
    from daft import DataFrame

SCHEMA = pa.schema([("doc", pa.int64()), ("line", pa.uint64())])


class LinesConfig(Section):
    """Which lines and paragraphs are boilerplate."""

    documents: int = Field(20, ge=2, description="a line that stands in so many documents, or more, is taken out")
    min_characters: int = Field(1, ge=1, description="a document with less left is dropped")


def hashed(doc: pa.Array, texts: pa.ChunkedArray) -> pa.Table:
    """Return a row for each different line, and each different paragraph of several lines, of each document."""
    numbers = doc.to_numpy()
    found = [_pieces(texts, "\n")[:2], _paragraphs(texts)]
    owners = np.concatenate([owner for owner, _ in found])
    values = np.concatenate([value for _, value in found])
    _, first = np.unique(values ^ mixed(owners.astype(np.uint64)), return_index=True)
    first.sort()
    return pa.table([pa.array(numbers[owners[first]]), pa.array(values[first])], schema=SCHEMA)


def repeated(lines: DataFrame, documents: int) -> DataFrame:
    """Return the lines that stand in so many documents or more, and in how many."""
    from daft import col

    counted = lines.groupby("line").agg(col("doc").count().alias("documents"))
    return counted.where(col("documents") >= documents)


def without(texts: pa.ChunkedArray, boilerplate: Hashes) -> tuple[pa.Array, int, int]:
    """Return texts without some lines and paragraphs, how many pieces were taken out, and of how many characters."""
    if not len(boilerplate) or not len(texts):
        return texts, 0, 0
    owners, values, pieces = _pieces(texts, "\n")
    gone = _is_in(values, boilerplate) & (pc.binary_length(pieces).to_numpy(zero_copy_only=False) > 0)
    whole_owners, whole_values = _paragraphs(texts)
    suspects = np.unique(np.concatenate([owners[gone], whole_owners[_is_in(whole_values, boilerplate)]]))
    if not len(suspects):
        return texts, 0, 0
    known = set(boilerplate.tolist())
    listed = flat(texts)
    count = size = 0
    stripped: list[str] = []
    for place in suspects.tolist():
        before = listed[place].as_py()
        after, number = _stripped(before, known)
        stripped.append(after)
        count, size = count + number, size + len(before) - len(after)
    mask: Bools = np.zeros(len(texts), dtype=bool)
    mask[suspects] = True
    return changed(listed, pa.array(mask), stripped), count, size


def load(folder: Path) -> Hashes:
    """Return the hashes of boilerplate that a corpus found, sorted."""
    import pyarrow.parquet as pq

    files = sorted(folder.glob("*.parquet"))
    found = [pq.read_table(file, columns=["line"])["line"].to_numpy() for file in files]
    return np.sort(np.concatenate([np.zeros(0, np.uint64), *found]))


def _stripped(text: str, known: set[int]) -> tuple[str, int]:
    """Take paragraphs out first, then lines, and close the gaps."""
    blocks = text.split("\n\n")
    several = [place for place, block in enumerate(blocks) if "\n" in block]
    gone = {
        place for place, value in zip(several, _hashes([blocks[p] for p in several], 1), strict=True) if value in known
    }
    kept, count = [], len(gone)
    for place, block in enumerate(blocks):
        if place in gone:
            continue
        rows = block.split("\n")
        stays = [row for row, value in zip(rows, _hashes(rows, 0), strict=True) if not row or value not in known]
        count += len(rows) - len(stays)
        if any(stays):
            kept.append("\n".join(stays))
    return "\n\n".join(kept), count


def _paragraphs(texts: pa.ChunkedArray) -> tuple[Ints, Hashes]:
    """Return owner and hash of each paragraph that has several lines; one of a single line counts as that line."""
    owners, _, pieces = _pieces(texts, "\n\n")
    several = pc.match_substring(pieces, "\n")
    chosen = pieces.filter(several)
    values = _hashes(chosen, 1)
    return owners[several.to_numpy(zero_copy_only=False)], values


def _pieces(texts: pa.ChunkedArray, separator: str) -> tuple[Ints, Hashes, pa.Array]:
    """Return owner, hash and text of each piece between separators; empty lines are pieces that hash as others do."""
    whole = flat(texts)
    lists = pc.split_pattern(whole, separator)
    pieces = lists.flatten()
    owners = np.repeat(np.arange(len(whole)), np.diff(lists.offsets.to_numpy()))
    if separator == "\n":
        filled = pc.greater(pc.binary_length(pieces), 0)
        pieces, owners = pieces.filter(filled), owners[filled.to_numpy(zero_copy_only=False)]
    return owners, _hashes(pieces, 0), pieces


def _hashes(pieces: pa.Array | list[str], seed: int) -> Hashes:
    from daft import col
    from daft.functions import hash as hashed_

    if not len(pieces):
        return np.zeros(0, np.uint64)
    table = pa.table({"piece": pa.array(pieces, pa.large_string()) if isinstance(pieces, list) else pieces})
    return evaluate(table, {"hash": hashed_(col("piece"), seed=seed, hash_function="xxhash3_64")})["hash"].to_numpy()


def _is_in(values: Hashes, known: Hashes) -> Bools:
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    found: Bools = known[places] == values
    return found
