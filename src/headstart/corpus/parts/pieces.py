"""Lines and paragraphs of a batch of texts: whose they are, and their hashes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headstart.core.data import Ints
from headstart.corpus.parts.engine import evaluate
from headstart.corpus.parts.shingles import Hashes, mixed
from headstart.corpus.parts.steps import flat


@dataclass(frozen=True)
class Pieces:
    """Pieces of several texts, one text after the other."""

    owners: Ints
    """For each piece the number of its text."""
    hashes: Hashes
    texts: pa.Array
    count: int
    """How many texts there are."""

    def distinct(self) -> Ints:
        """Return the places of each text's different pieces, the first of each."""
        _, first = np.unique(self.hashes ^ mixed(self.owners.astype(np.uint64)), return_index=True)
        first.sort()
        return first

    def numbers(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return for each text how many pieces and characters in them it has, and how many of the different ones."""
        lengths = pc.utf8_length(self.texts).to_numpy(zero_copy_only=False)
        once = self.distinct()
        return {
            "all": self._counted(self.owners),
            "distinct": self._counted(self.owners[once]),
            "characters": self._counted(self.owners, lengths),
            "distinct characters": self._counted(self.owners[once], lengths[once]),
        }

    def _counted(self, owners: Ints, weights: Ints | None = None) -> npt.NDArray[np.float64]:
        return np.bincount(owners, weights, minlength=self.count).astype(np.float64)


def lines_of(texts: pa.Array | pa.ChunkedArray) -> Pieces:
    """Return the lines with something on them."""
    owners, pieces = _split(texts, "\n")
    filled = pc.greater(pc.binary_length(pieces), 0)
    owners, pieces = owners[filled.to_numpy(zero_copy_only=False)], pieces.filter(filled)
    return Pieces(owners, hashes_of(pieces, 0), pieces, len(texts))


def paragraphs_of(texts: pa.Array | pa.ChunkedArray, several_lines: bool = False) -> Pieces:
    """Return what stands between blank lines; only what has several lines if wished."""
    owners, pieces = _split(texts, "\n\n")
    if several_lines:
        several = pc.match_substring(pieces, "\n")
        owners, pieces = owners[several.to_numpy(zero_copy_only=False)], pieces.filter(several)
    return Pieces(owners, hashes_of(pieces, 1), pieces, len(texts))


def hashes_of(pieces: pa.Array | list[str], seed: int) -> Hashes:
    """Hash pieces; those of one kind have a seed of their own, so that a line is never taken for a paragraph."""
    from daft import col
    from daft.functions import hash as hashed

    if not len(pieces):
        return np.zeros(0, np.uint64)
    table = pa.table({"piece": pa.array(pieces, pa.large_string()) if isinstance(pieces, list) else pieces})
    return evaluate(table, {"hash": hashed(col("piece"), seed=seed, hash_function="xxhash3_64")})["hash"].to_numpy()


def _split(texts: pa.Array | pa.ChunkedArray, separator: str) -> tuple[Ints, pa.Array]:
    lists = pc.split_pattern(flat(texts), separator)
    return np.repeat(np.arange(len(texts)), np.diff(lists.offsets.to_numpy())), lists.flatten()
