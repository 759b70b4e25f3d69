"""Lines and paragraphs that stand in many documents: menus, notices, signatures. They are taken out of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pydantic import Field

from headstart.core.config import Section
from headstart.core.contracts import Bools
from headstart.corpus.pieces import hashes_of, lines_of, paragraphs_of
from headstart.corpus.shingles import Hashes
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
    numbers, docs, values = doc.to_numpy(), [], []
    # A paragraph of one line counts as that line.
    for pieces in (lines_of(texts), paragraphs_of(texts, several_lines=True)):
        once = pieces.distinct()
        docs.append(numbers[pieces.owners[once]])
        values.append(pieces.hashes[once])
    return pa.table([np.concatenate(docs), np.concatenate(values)], schema=SCHEMA)


def repeated(lines: DataFrame, documents: int) -> DataFrame:
    """Return the lines that stand in so many documents or more, and in how many."""
    from daft import col

    counted = lines.groupby("line").agg(col("doc").count().alias("documents"))
    return counted.where(col("documents") >= documents)


def without(texts: pa.ChunkedArray, boilerplate: Hashes) -> tuple[pa.Array, int, int]:
    """Return texts without some lines and paragraphs, how many pieces were taken out, and of how many characters."""
    if not len(boilerplate) or not len(texts):
        return texts, 0, 0
    found = [
        pieces.owners[_is_in(pieces.hashes, boilerplate)] for pieces in (lines_of(texts), paragraphs_of(texts, True))
    ]
    suspects = np.unique(np.concatenate(found))
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
        place
        for place, value in zip(several, hashes_of([blocks[p] for p in several], 1), strict=True)
        if value in known
    }
    kept, count = [], len(gone)
    for place, block in enumerate(blocks):
        if place in gone:
            continue
        rows = block.split("\n")
        stays = [row for row, value in zip(rows, hashes_of(rows, 0), strict=True) if not row or value not in known]
        count += len(rows) - len(stays)
        if any(stays):
            kept.append("\n".join(stays))
    return "\n\n".join(kept), count


def _is_in(values: Hashes, known: Hashes) -> Bools:
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    found: Bools = known[places] == values
    return found
