"""Lines and paragraphs that stand in many documents: menus, notices, signatures. They are taken out of all of them."""

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
from headstart.corpus.parts.steps import flat

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
    """Return texts without some lines and paragraphs, how many pieces were taken out, and of how many characters.

    Paragraphs go first, then lines, and the gaps are closed; a text that holds none of them stays as it is.
    `boilerplate` must be sorted.
    """
    if not len(boilerplate) or not len(texts):
        return texts, 0, 0
    whole = flat(texts)
    blocks = pc.split_pattern(whole, "\n\n")
    rows = pc.split_pattern(blocks.flatten(), "\n")
    text_of = np.repeat(np.arange(len(whole)), np.diff(blocks.offsets.to_numpy()))
    block_of = np.repeat(np.arange(len(text_of)), np.diff(rows.offsets.to_numpy()))
    blocks, rows = blocks.flatten(), rows.flatten()
    gone = _known(blocks, pc.match_substring(blocks, "\n"), 1, boilerplate)
    filled = pc.greater(pc.binary_length(rows), 0)
    lines = _known(rows, filled, 0, boilerplate) & ~gone[block_of]
    touched: Bools = np.zeros(len(whole), dtype=bool)
    touched[text_of[gone]] = touched[text_of[block_of[lines]]] = True
    if not touched.any():
        return texts, 0, 0
    # A block of which only blank lines are left goes as well.
    stays = ~lines & ~gone[block_of] & touched[text_of[block_of]]
    useful: Bools = np.zeros(len(blocks), dtype=bool)
    useful[block_of[stays & filled.to_numpy(zero_copy_only=False)]] = True
    stays &= useful[block_of]
    joined = _joined(rows.filter(pa.array(stays)), block_of[stays], np.flatnonzero(useful), "\n")
    stripped = _joined(joined, text_of[useful], np.flatnonzero(touched), "\n\n")
    after = pc.replace_with_mask(whole, pa.array(touched), stripped)
    size = pc.sum(pc.utf8_length(whole)).as_py() - pc.sum(pc.utf8_length(after)).as_py()
    return after, int(gone.sum() + lines.sum()), size


def load(folder: Path) -> Hashes:
    """Return the hashes of boilerplate that a corpus found, sorted."""
    import pyarrow.parquet as pq

    files = sorted(folder.glob("*.parquet"))
    found = [pq.read_table(file, columns=["line"])["line"].to_numpy() for file in files]
    return np.sort(np.concatenate([np.zeros(0, np.uint64), *found]))


def _known(pieces: pa.Array, chosen: pa.Array, seed: int, known: Hashes) -> Bools:
    """Say of each piece whether it is one of the chosen and is known by its hash."""
    found: Bools = chosen.to_numpy(zero_copy_only=False).copy()
    found[found] = _is_in(hashes_of(pieces.filter(chosen), seed), known)
    return found


def _joined(pieces: pa.Array, owners: Ints, wanted: Ints, separator: str) -> pa.Array:
    """Join the pieces of each wanted owner; an owner without any is an empty text."""
    starts = pa.array(np.searchsorted(owners, np.append(wanted, wanted[-1] + 1)) if len(wanted) else [0], pa.int32())
    lists = pa.ListArray.from_arrays(starts, pieces)
    return pc.binary_join(lists, pa.scalar(separator, pieces.type))


def _is_in(values: Hashes, known: Hashes) -> Bools:
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    found: Bools = known[places] == values
    return found
