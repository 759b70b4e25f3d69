"""Evaluation sets in the corpus: n-grams of theirs that a document holds, as GPT-3 looked for them.

Their n-grams are hashed into one table before the corpus is read. An item shorter than n words is looked for as a
whole, down to a least length; GPT-3 let n vary between 8 and 13 words in the same way.
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
from pydantic import Field, field_validator

from headstart.core.config import Section, require_own_names
from headstart.core.data import Bools, Ints
from headstart.core.errors import DataError
from headstart.corpus.dedup.fingerprints import normal
from headstart.corpus.parts.engine import evaluate
from headstart.corpus.parts.shingles import Hashes, ngrams, words_of
from headstart.corpus.parts.steps import StepOutput
from headstart.corpus.read.formats import READERS, BadRow, RawRow, ReadOptions, suffix_of
from headstart.corpus.read.readers import expand

_SIEVE_BITS = 24


class EvaluationSet(Section):
    """One set whose items must not be in the corpus."""

    name: str = Field(pattern=r"^[\w.-]+$", description="the set's name in the datasheet")
    files: list[str] = Field(min_length=1, description="paths or globs of parquet, jsonl, csv or text files")
    text: list[str] = Field(["text"], min_length=1, description="columns to look for, each by itself")

    @field_validator("text", "files", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: object) -> object:
        return [str(value)] if isinstance(value, str | Path) else value


class ContaminationConfig(Section):
    """Which evaluation sets are looked for, and what is done with what holds them."""

    sets: list[EvaluationSet] = Field(min_length=1, description="the evaluation sets")
    words: int = Field(13, ge=3, le=50, description="words in a row that tell; GPT-3 used 13")
    least_words: int = Field(8, ge=3, description="a shorter item cannot be told from common speech")
    hits: int = Field(1, ge=1, description="different n-grams of the sets in one document from which on it counts")
    action: Literal["drop", "mark"] = Field("drop", description="drop such documents, or only mark and count them")

    @field_validator("sets")
    @classmethod
    def _names_differ(cls, value: list[EvaluationSet]) -> list[EvaluationSet]:
        require_own_names([entry.name for entry in value], "set")
        return value


class Contamination:
    """Find documents that hold items of evaluation sets."""

    paper: ClassVar[str] = "Brown et al. 2020, GPT-3, appendix C"
    name = "contamination"

    def __init__(self, config: ContaminationConfig, table: Path) -> None:
        """Load the table that `write_table` made."""
        self.config = config
        made = pq.read_table(table)
        # Each different n-gram once, and behind it the items and the sets that share it: a sentence of instructions
        # in every item of a set is one n-gram here, and not as many as there are items.
        self.hashes, counts = np.unique(made["hash"].to_numpy(), return_counts=True)
        self._items: Ints = made["item"].to_numpy().astype(np.int64)
        self._starts: Ints = np.concatenate([[0], np.cumsum(counts)])
        many = len(config.sets)
        pairs = np.unique(np.repeat(np.arange(len(self.hashes)), counts) * many + made["set"].to_numpy())
        self._sets: Ints = pairs % many
        self._set_starts: Ints = np.searchsorted(pairs, np.arange(len(self.hashes) + 1) * many)
        self.lengths = sorted(set(made["words"].to_pylist()))
        self.found: set[int] = set()
        """Numbers of the items that were met, for the counts by set."""
        self._met: Ints = np.zeros(0, np.int64)
        self._sieve: Bools = np.zeros(1 << _SIEVE_BITS, dtype=bool)
        self._sieve[_slots(self.hashes)] = True

    def apply(self, table: pa.Table) -> StepOutput:
        """Return the batch with a column of the sets that each document holds items of, and a verdict."""
        owners, places = self._hits(table["normal"])
        held = np.bincount(owners, minlength=len(table)) >= self.config.hits
        owners, places = owners[held[owners]], places[held[owners]]
        self._note(np.unique(places))
        counts: Counter[str] = Counter()
        marks: list[list[str]] = [[] for _ in range(len(table))]
        several = self._set_starts[places + 1] - self._set_starts[places]
        within = np.arange(several.sum()) - np.repeat(np.cumsum(several) - several, several)
        sets = self._sets[np.repeat(self._set_starts[places], several) + within]
        owners = np.repeat(owners, several)
        for number, entry in enumerate(self.config.sets):
            hit = np.unique(owners[sets == number]).tolist()
            counts[f"documents with {entry.name}"] += len(hit)
            for row in hit:
                marks[row].append(entry.name)
        marked = table.append_column("evaluation_sets", pa.array(marks, pa.list_(pa.string())))
        verdict = pc.if_else(pa.array(held), "contamination", pa.scalar(None, pa.string()))
        return StepOutput(marked, verdict if self.config.action == "drop" else None, counts)

    def _hits(self, normals: pa.ChunkedArray) -> tuple[Ints, Ints]:
        """Return the number of the document and the place of the n-gram, once for each that stands in a document."""
        words = words_of(normals)
        owners_of_words = words.owners
        found = [np.zeros(0, np.int64)]
        for length in self.lengths:
            hashes, starts = ngrams(words, length)
            maybe = self._sieve[_slots(hashes)]
            hashes, starts = hashes[maybe], starts[maybe]
            places = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
            true = self.hashes[places] == hashes
            found.append(owners_of_words[starts[true]] * len(self.hashes) + places[true])
        owners, places = np.divmod(np.unique(np.concatenate(found)), max(1, len(self.hashes)))
        return owners, places

    def _note(self, places: Ints) -> None:
        """Add the items of n-grams to those found, of each n-gram once."""
        if not self.found:
            self._met = self._met[:0]
        for place in np.setdiff1d(places, self._met, assume_unique=True).tolist():
            self.found.update(self._items[self._starts[place] : self._starts[place + 1]].tolist())
        self._met = np.union1d(self._met, places)


def _slots(hashes: Hashes) -> Ints:
    return (hashes >> np.uint64(64 - _SIEVE_BITS)).astype(np.int64)


def write_table(config: ContaminationConfig, path: Path) -> list[dict[str, int | str]]:
    """Write the n-grams of all sets, sorted by hash, and return how many items each has and how many are too short."""
    from daft import col

    hashes, items, sets, lengths = [], [], [], []
    facts: list[dict[str, int | str]] = []
    number = 0
    for place, entry in enumerate(config.sets):
        texts = _texts(entry)
        column = pa.array(texts, pa.large_string())
        words = words_of(evaluate(pa.table({"text": column}), {"normal": normal(col("text"))})["normal"])
        counts = np.diff(words.starts)
        short = counts < min(config.least_words, config.words)
        for length in range(min(config.least_words, config.words), config.words + 1):
            found, starts = ngrams(words, length)
            owners = words.owners[starts]
            mine = counts[owners] >= config.words if length == config.words else counts[owners] == length
            hashes.append(found[mine])
            items.append(owners[mine] + number)
            sets.append(np.full(mine.sum(), place))
            lengths.append(np.full(mine.sum(), length))
        facts.append({"set": entry.name, "items": len(texts), "too_short": int(short.sum()), "first_item": number})
        number += len(texts)
    joined = [np.concatenate(column) for column in (hashes, items, sets, lengths)]
    order = np.argsort(joined[0], kind="stable")
    columns = dict(zip(("hash", "item", "set", "words"), (column[order] for column in joined), strict=True))
    pq.write_table(pa.table(columns), path)
    return facts


def _texts(entry: EvaluationSet) -> list[str]:
    """Return the items of a set: each row of each column."""
    texts: list[str] = []
    for path in expand(entry.files, "contamination.sets.files"):
        reader = READERS.get(suffix_of(path.name))
        if reader is None:
            raise DataError(f"{path} has a suffix that no reader knows", do="Convert the evaluation set to jsonl")
        for column in entry.text:
            texts += _filled(path, reader(str(path), ReadOptions(column)))
    if not texts:
        raise DataError(
            f"the evaluation set {entry.name} holds no text",
            allowed=f"It is read from the columns {', '.join(entry.text)} of its files",
            do="Check its files and columns, or leave the set out",
        )
    return texts


def _filled(path: Path, rows: Iterator[RawRow]) -> list[str]:
    """Return the texts of rows that hold some; a row that cannot be read is an item that would never be found."""
    found: list[str] = []
    for row in rows:
        if not isinstance(row.value, BadRow):
            found += [row.value] if row.value.strip() else []
        elif row.value.error is not None:
            raise row.value.error
        else:
            raise DataError(
                f"{path}, {row.place}, cannot be read: {row.value.reason}",
                allowed="Every row of an evaluation set must be text, for what is not read is not looked for",
                do="Mend or remove the row",
            )
    return found
