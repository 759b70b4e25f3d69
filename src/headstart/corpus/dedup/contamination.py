"""Evaluation sets in the corpus: documents that contain n-grams of evaluation items, as in GPT-3.

The n-grams of all sets are hashed into one table before the corpus is read. An item shorter than n words is searched as
a whole, down to a minimum length; GPT-3 varied n between 8 and 13 words in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, PrivateAttr, field_validator

from headstart.core.config import Section, require_unique_names
from headstart.core.data import Bools, Ints
from headstart.core.errors import DataError
from headstart.corpus.dedup.fingerprints import normalize
from headstart.corpus.parts.engine import evaluate
from headstart.corpus.parts.shingles import Hashes, ngrams, words_of
from headstart.corpus.parts.steps import StepOutput
from headstart.corpus.read.formats import READERS, BadRow, RawRow, ReadOptions, suffix_of
from headstart.corpus.read.readers import expand
from headstart.corpus.read.stores import Listing, StoredObject
from headstart.corpus.read.urls import without_options

_SIEVE_BITS = 24


class EvaluationSet(Section):
    """One set whose items must not be in the corpus."""

    name: str = Field(pattern=r"^[\w.-]+$", description="the set's name in the datasheet")
    files: list[str] = Field(min_length=1, description="paths, globs or URLs of parquet, jsonl, csv or text files")
    text: list[str] = Field(["text"], min_length=1, description="columns to search for, each separately")
    _listed: dict[str, Listing] = PrivateAttr(default_factory=dict)
    """The objects that each URL of `files` matches, listed once."""

    @field_validator("text", "files", mode="before")
    @classmethod
    def _as_list(cls, value: object) -> object:
        return [str(value)] if isinstance(value, str | Path) else value

    def paths(self) -> list[Path | StoredObject]:
        """Return the files, each once, sorted."""
        return expand(self.files, "contamination.sets.files", self._listed)


class ContaminationConfig(Section):
    """Which evaluation sets are searched for, and what happens to documents that contain their items."""

    sets: list[EvaluationSet] = Field(min_length=1, description="the evaluation sets")
    words: int = Field(13, ge=3, le=50, description="consecutive words that count as a match; GPT-3 used 13")
    least_words: int = Field(8, ge=3, description="a shorter item is not searched, because it may be a common phrase")
    hits: int = Field(1, ge=1, description="minimum number of distinct matching n-grams in a contaminated document")
    action: Literal["drop", "mark"] = Field("drop", description="drop such documents, or only mark and count them")

    @field_validator("sets")
    @classmethod
    def _names_differ(cls, value: list[EvaluationSet]) -> list[EvaluationSet]:
        require_unique_names([entry.name for entry in value], "set")
        return value


class Contamination:
    """Find documents that contain items of evaluation sets."""

    paper: ClassVar[str] = "Brown et al. 2020, GPT-3, appendix C"
    name = "contamination"

    def __init__(self, config: ContaminationConfig, table: Path) -> None:
        """Load the table of n-grams that `write_table` wrote."""
        self.config = config
        rows = pq.read_table(table)
        # Each distinct n-gram once, with the items and the sets that contain it: an instruction that is repeated in
        # every item of a set is one n-gram here, and not one per item.
        self.hashes, counts = np.unique(rows["hash"].to_numpy(), return_counts=True)
        self._items: Ints = rows["item"].to_numpy().astype(np.int64)
        self._starts: Ints = np.concatenate([[0], np.cumsum(counts)])
        set_count = len(config.sets)
        pairs = np.unique(np.repeat(np.arange(len(self.hashes)), counts) * set_count + rows["set"].to_numpy())
        self._sets: Ints = pairs % set_count
        self._set_starts: Ints = np.searchsorted(pairs, np.arange(len(self.hashes) + 1) * set_count)
        self.lengths = sorted(set(rows["words"].to_pylist()))
        self.found_items: set[int] = set()
        """Numbers of the items found so far, from which the items of each set are counted."""
        self._counted: Ints = np.zeros(0, np.int64)
        self._sieve: Bools = np.zeros(1 << _SIEVE_BITS, dtype=bool)
        self._sieve[_slots(self.hashes)] = True

    def apply(self, table: pa.Table) -> StepOutput:
        """Add a column with the evaluation sets found in each document, and a verdict."""
        owners, indices = self._hits(table["normal"])
        is_contaminated = np.bincount(owners, minlength=len(table)) >= self.config.hits
        owners, indices = owners[is_contaminated[owners]], indices[is_contaminated[owners]]
        self._count_items(np.unique(indices))
        counts: Counter[str] = Counter()
        marks: list[list[str]] = [[] for _ in range(len(table))]
        sizes = self._set_starts[indices + 1] - self._set_starts[indices]
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        sets = self._sets[np.repeat(self._set_starts[indices], sizes) + within]
        owners = np.repeat(owners, sizes)
        for i, entry in enumerate(self.config.sets):
            rows = np.unique(owners[sets == i]).tolist()
            counts[f"documents with {entry.name}"] += len(rows)
            for row in rows:
                marks[row].append(entry.name)
        marked = table.append_column("evaluation_sets", pa.array(marks, pa.list_(pa.string())))
        verdict = pc.if_else(pa.array(is_contaminated), "contamination", pa.scalar(None, pa.string()))
        return StepOutput(marked, verdict if self.config.action == "drop" else None, counts)

    def _hits(self, normals: pa.ChunkedArray) -> tuple[Ints, Ints]:
        """Return the index of the document and of the n-gram, once for each n-gram that occurs in a document."""
        words = words_of(normals)
        owners_of_words = words.owners
        hits = [np.zeros(0, np.int64)]
        for length in self.lengths:
            hashes, starts = ngrams(words, length)
            maybe = self._sieve[_slots(hashes)]
            hashes, starts = hashes[maybe], starts[maybe]
            indices = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
            equal = self.hashes[indices] == hashes
            hits.append(owners_of_words[starts[equal]] * len(self.hashes) + indices[equal])
        owners, indices = np.divmod(np.unique(np.concatenate(hits)), max(1, len(self.hashes)))
        return owners, indices

    def _count_items(self, indices: Ints) -> None:
        """Add the items of some n-grams to the items found; each n-gram is counted once."""
        if not self.found_items:
            self._counted = self._counted[:0]
        for i in np.setdiff1d(indices, self._counted, assume_unique=True).tolist():
            self.found_items.update(self._items[self._starts[i] : self._starts[i + 1]].tolist())
        self._counted = np.union1d(self._counted, indices)


def _slots(hashes: Hashes) -> Ints:
    return (hashes >> np.uint64(64 - _SIEVE_BITS)).astype(np.int64)


def write_table(config: ContaminationConfig, path: Path) -> list[dict[str, int | str]]:
    """Write the n-grams of all sets, sorted by hash; return the number of items of each set and of those too short."""
    from daft import col

    hashes, items, sets, lengths = [], [], [], []
    facts: list[dict[str, int | str]] = []
    first_item, min_words = 0, min(config.least_words, config.words)
    for i, entry in enumerate(config.sets):
        texts = _texts(entry)
        column = pa.array(texts, pa.large_string())
        words = words_of(evaluate(pa.table({"text": column}), {"normal": normalize(col("text"))})["normal"])
        counts = np.diff(words.starts)
        for length in range(min_words, config.words + 1):
            grams, starts = ngrams(words, length)
            owners = words.owners[starts]
            selected = counts[owners] >= config.words if length == config.words else counts[owners] == length
            hashes.append(grams[selected])
            items.append(owners[selected] + first_item)
            sets.append(np.full(selected.sum(), i))
            lengths.append(np.full(selected.sum(), length))
        too_short = int((counts < min_words).sum())
        facts.append({"set": entry.name, "items": len(texts), "too_short": too_short, "first_item": first_item})
        first_item += len(texts)
    joined = [np.concatenate(column) for column in (hashes, items, sets, lengths)]
    order = np.argsort(joined[0], kind="stable")
    columns = dict(zip(("hash", "item", "set", "words"), (column[order] for column in joined), strict=True))
    pq.write_table(pa.table(columns), path)
    return facts


def _texts(entry: EvaluationSet) -> list[str]:
    """Return the items of a set: each row of each column."""
    texts: list[str] = []
    for path in entry.paths():
        reader = READERS.get(suffix_of(path.name))
        if reader is None:
            shown = without_options(str(path))
            raise DataError(f"{shown} has an unsupported suffix", do="Convert the evaluation set to jsonl")
        for column in entry.text:
            texts += _nonempty(str(path), reader(str(path), ReadOptions(column)))
    if not texts:
        raise DataError(
            f"the evaluation set {entry.name} has no text",
            allowed=f"It is read from the columns {', '.join(entry.text)} of its files",
            do="Check its files and columns, or remove the set",
        )
    return texts


def _nonempty(path: str, rows: Iterator[RawRow]) -> list[str]:
    """Return the texts that are not empty; raise if a row cannot be read, because it could not be searched for."""
    texts: list[str] = []
    for row in rows:
        if not isinstance(row.value, BadRow):
            texts += [row.value] if row.value.strip() else []
        elif row.value.error is not None:
            raise row.value.error
        else:
            raise DataError(
                f"{without_options(path)}, {row.position}, cannot be read: {row.value.reason}",
                allowed="Every row of an evaluation set must be text, because unread items are not searched for",
                do="Fix or remove the row",
            )
    return texts
