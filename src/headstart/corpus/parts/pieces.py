"""Lines and paragraphs of a batch of texts, with the text that each belongs to, and their hashes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headstart.core.data import Ints
from headstart.core.randomness import mix_bits
from headstart.corpus.parts.engine import evaluate
from headstart.corpus.parts.shingles import Hashes
from headstart.corpus.parts.steps import as_array


@dataclass(frozen=True)
class Pieces:
    """The pieces of several texts, one text after the other."""

    owners: Ints
    """The index of the text that each piece belongs to."""
    hashes: Hashes
    texts: pa.Array
    count: int
    """The number of texts."""

    def distinct(self) -> Ints:
        """Return the indices of the distinct pieces of each text, the first occurrence of each."""
        _, first = np.unique(self.hashes ^ mix_bits(self.owners.astype(np.uint64)), return_index=True)
        first.sort()
        return first

    def totals(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return the number of pieces of each text and their characters, of all and of the distinct pieces."""
        lengths = pc.utf8_length(self.texts).to_numpy(zero_copy_only=False)
        once = self.distinct()
        return {
            "all": self._sum(self.owners),
            "distinct": self._sum(self.owners[once]),
            "characters": self._sum(self.owners, lengths),
            "distinct characters": self._sum(self.owners[once], lengths[once]),
        }

    def _sum(self, owners: Ints, weights: Ints | None = None) -> npt.NDArray[np.float64]:
        return np.bincount(owners, weights, minlength=self.count).astype(np.float64)


def lines_of(texts: pa.Array | pa.ChunkedArray) -> Pieces:
    """Return the lines that are not empty."""
    owners, pieces = _split(texts, "\n")
    filled = pc.greater(pc.binary_length(pieces), 0)
    owners, pieces = owners[filled.to_numpy(zero_copy_only=False)], pieces.filter(filled)
    return Pieces(owners, hashes_of(pieces, 0), pieces, len(texts))


def paragraphs_of(texts: pa.Array | pa.ChunkedArray, several_lines: bool = False) -> Pieces:
    """Return the paragraphs, which blank lines separate; with `several_lines`, only those of more than one line."""
    owners, pieces = _split(texts, "\n\n")
    if several_lines:
        several = pc.match_substring(pieces, "\n")
        owners, pieces = owners[several.to_numpy(zero_copy_only=False)], pieces.filter(several)
    return Pieces(owners, hashes_of(pieces, 1), pieces, len(texts))


def hashes_of(pieces: pa.Array | list[str], seed: int) -> Hashes:
    """Hash pieces; lines and paragraphs use different seeds, so that one is never taken for the other."""
    from daft import col
    from daft.functions import hash as hashed

    if not len(pieces):
        return np.zeros(0, np.uint64)
    table = pa.table({"piece": pa.array(pieces, pa.large_string()) if isinstance(pieces, list) else pieces})
    return evaluate(table, {"hash": hashed(col("piece"), seed=seed, hash_function="xxhash3_64")})["hash"].to_numpy()


def _split(texts: pa.Array | pa.ChunkedArray, separator: str) -> tuple[Ints, pa.Array]:
    lists = pc.split_pattern(as_array(texts), separator)
    return np.repeat(np.arange(len(texts)), np.diff(lists.offsets.to_numpy())), lists.flatten()
