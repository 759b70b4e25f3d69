"""Lines and paragraphs that occur in many documents (menus, notices, signatures) are removed from all of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from headstart.core.config import Section
from headstart.core.data import Bools, Ints
from headstart.corpus.parts.pieces import hashes_of, lines_of, paragraphs_of
from headstart.corpus.parts.shingles import Hashes
from headstart.corpus.parts.steps import as_array

if TYPE_CHECKING:
    from daft import DataFrame

SCHEMA = pa.schema([("doc", pa.int64()), ("line", pa.uint64())])


class LinesConfig(Section):
    """Which lines and paragraphs are boilerplate."""

    documents: int = Field(20, ge=2, description="remove a line that occurs in this many documents or more")
    min_characters: int = Field(1, ge=1, description="drop a document with fewer characters left")


def hash_lines(doc: pa.Array, texts: pa.ChunkedArray) -> pa.Table:
    """Return one row per distinct line, and per distinct paragraph of several lines, of each document."""
    numbers, docs, values = doc.to_numpy(), [], []
    # A paragraph of one line counts as that line.
    for pieces in (lines_of(texts), paragraphs_of(texts, several_lines=True)):
        once = pieces.distinct()
        docs.append(numbers[pieces.owners[once]])
        values.append(pieces.hashes[once])
    return pa.table([np.concatenate(docs), np.concatenate(values)], schema=SCHEMA)


def repeated(lines: DataFrame, documents: int) -> DataFrame:
    """Return the lines that occur in at least the given number of documents, with their counts."""
    from daft import col

    counted = lines.groupby("line").agg(col("doc").count().alias("documents"))
    return counted.where(col("documents") >= documents)


def remove(texts: pa.ChunkedArray, boilerplate: Hashes) -> tuple[pa.Array, int, int]:
    """Return the texts without boilerplate, and the number of pieces and characters that were removed.

    Paragraphs are removed first, then lines, and the gaps are closed. A text without boilerplate is not changed.
    `boilerplate` must be sorted.
    """
    if not len(boilerplate) or not len(texts):
        return texts, 0, 0
    array = as_array(texts)
    blocks = pc.split_pattern(array, "\n\n")
    rows = pc.split_pattern(blocks.flatten(), "\n")
    text_of = np.repeat(np.arange(len(array)), np.diff(blocks.offsets.to_numpy()))
    block_of = np.repeat(np.arange(len(text_of)), np.diff(rows.offsets.to_numpy()))
    blocks, rows = blocks.flatten(), rows.flatten()
    bad_blocks = _is_boilerplate(blocks, pc.match_substring(blocks, "\n"), 1, boilerplate)
    filled = pc.greater(pc.binary_length(rows), 0)
    bad_rows = _is_boilerplate(rows, filled, 0, boilerplate) & ~bad_blocks[block_of]
    is_changed: Bools = np.zeros(len(array), dtype=bool)
    is_changed[text_of[bad_blocks]] = is_changed[text_of[block_of[bad_rows]]] = True
    if not is_changed.any():
        return texts, 0, 0
    # A block with nothing but blank lines left is removed too.
    kept = ~bad_rows & ~bad_blocks[block_of] & is_changed[text_of[block_of]]
    has_text: Bools = np.zeros(len(blocks), dtype=bool)
    has_text[block_of[kept & filled.to_numpy(zero_copy_only=False)]] = True
    kept &= has_text[block_of]
    joined = _join(rows.filter(pa.array(kept)), block_of[kept], np.flatnonzero(has_text), "\n")
    stripped = _join(joined, text_of[has_text], np.flatnonzero(is_changed), "\n\n")
    output = pc.replace_with_mask(array, pa.array(is_changed), stripped)
    size = pc.sum(pc.utf8_length(array)).as_py() - pc.sum(pc.utf8_length(output)).as_py()
    return output, int(bad_blocks.sum() + bad_rows.sum()), size


def load(folder: Path) -> Hashes:
    """Return the sorted hashes of a corpus's boilerplate."""
    import pyarrow.parquet as pq

    files = sorted(folder.glob("*.parquet"))
    hashes = [pq.read_table(file, columns=["line"])["line"].to_numpy() for file in files]
    return np.sort(np.concatenate([np.zeros(0, np.uint64), *hashes]))


def _is_boilerplate(pieces: pa.Array, mask: pa.Array, seed: int, boilerplate: Hashes) -> Bools:
    """Return for each piece whether the mask selects it and its hash is boilerplate."""
    selected: Bools = mask.to_numpy(zero_copy_only=False).copy()
    selected[selected] = _is_in(hashes_of(pieces.filter(mask), seed), boilerplate)
    return selected


def _join(pieces: pa.Array, owners: Ints, selected: Ints, separator: str) -> pa.Array:
    """Join the pieces of each selected owner; an owner without pieces gives an empty text."""
    starts = np.searchsorted(owners, np.append(selected, selected[-1] + 1)) if len(selected) else [0]
    lists = pa.ListArray.from_arrays(pa.array(starts, pa.int32()), pieces)
    return pc.binary_join(lists, pa.scalar(separator, pieces.type))


def _is_in(values: Hashes, known: Hashes) -> Bools:
    indices = np.minimum(np.searchsorted(known, values), len(known) - 1)
    equal: Bools = known[indices] == values
    return equal
