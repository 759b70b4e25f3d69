"""The last task of each part: drop duplicates, remove boilerplate, apply the mixture, and split.

documents ─ duplicates ─ lines ─ mixture ─ train | validation
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headstart.core.config import Section
from headstart.corpus.dedup import lines
from headstart.corpus.dedup.lines import LinesConfig
from headstart.corpus.parts.dropped import DroppedDocuments
from headstart.corpus.parts.files import PartFiles, finished, part_file, part_files
from headstart.corpus.parts.receipt import RowCounts
from headstart.corpus.parts.shingles import Hashes
from headstart.corpus.parts.steps import count_characters, with_text
from headstart.corpus.select.proportions import uniform

SPLITS = ("train", "validation")
COLUMNS = ("id", "source", "url", "language", "evaluation_sets", "key", "text")
_LENGTH_BINS = 24


class SelectSettings(Section):
    """Everything that a task needs in addition to the number of its part."""

    folder: Path
    lines: LinesConfig | None
    rates: dict[str, float]
    """The fraction of documents to keep, by "source/language"; a group that is not listed is kept whole."""
    validation: float
    seed: int


def select_part(task: Mapping[str, Any]) -> dict[str, Any]:
    """Write the selected documents of one part, unless it is finished, and return its note with the row counts."""
    settings, number = _settings(task["settings"]), int(task["part"])
    before = finished(settings.folder / "select", number)
    if before is not None:
        return before
    note: dict[str, Any] = {"part": number}
    with part_files(settings.folder / "select", number, note) as files:
        note |= _Selector(settings, number, files).run()
    return note


@lru_cache(maxsize=4)
def _settings(text: str) -> SelectSettings:
    return SelectSettings.model_validate_json(text)


@lru_cache(maxsize=2)
def _boilerplate(folder: Path) -> Hashes:
    return lines.load(folder)


def duplicates_of(folder: Path, number: int) -> dict[int, str]:
    """Return the documents of one part that are duplicates, with their kind; only its row groups are read."""
    first = number << 32
    inside = (pc.field("doc") >= first) & (pc.field("doc") < first + (1 << 32))
    table = pq.read_table(folder, columns=["doc", "kind"], filters=inside)
    return dict(zip(table["doc"].to_pylist(), table["kind"].to_pylist(), strict=True))


class _Selector:
    """Selects the documents of one part and keeps its counts."""

    def __init__(self, settings: SelectSettings, number: int, files: PartFiles) -> None:
        self.settings, self.number, self.files = settings, number, files
        self.row_counts = RowCounts()
        self.dropped = DroppedDocuments(files)
        self.duplicates = duplicates_of(settings.folder / "duplicates" / "found", number)
        has_lines = settings.lines is not None
        self.boilerplate = _boilerplate(settings.folder / "lines") if has_lines else np.zeros(0, np.uint64)

    def run(self) -> dict[str, Any]:
        """Select the documents batch by batch and return the note of the part."""
        facts: dict[str, Counter[str]] = {name: Counter() for name in ("languages", "sources", "lengths", "domains")}
        splits: Counter[str] = Counter()
        with pq.ParquetFile(part_file(self.settings.folder / "clean" / "documents", self.number)) as file:
            # A row group is a batch of the cleaning task, whose size is limited in bytes and not in rows.
            for group in range(file.num_row_groups):
                table = self._sample(self._remove_lines(self._drop_duplicates(file.read_row_group(group))))
                for split, rows in self._split(table).items():
                    if len(rows):
                        self.files.write(split, rows.select(COLUMNS))
                        splits[split] += len(rows)
                        splits[f"{split} characters"] += count_characters(rows)
                facts["lengths"].update(_length_bins(pc.utf8_length(table["text"])))
                facts["domains"].update(_domain(url) for url in table["url"].drop_null().to_pylist())
                facts["languages"].update(language or "unknown" for language in table["language"].to_pylist())
                for source in pc.unique(table["source"]).to_pylist():
                    facts["sources"][source] += count_characters(table.filter(pc.equal(table["source"], source)))
        self.row_counts.check()
        return {
            "books": self.row_counts.to_json(),
            "splits": dict(splits),
            "facts": {name: dict(counts) for name, counts in facts.items()},
        }

    def _drop_duplicates(self, table: pa.Table) -> pa.Table:
        kinds = [self.duplicates.get(doc) for doc in table["doc"].to_pylist()]
        after = table.filter(pa.array([kind is None for kind in kinds], pa.bool_()))
        self._count("duplicates", table, after, Counter(f"duplicates.{kind}" for kind in kinds if kind is not None))
        return after

    def _remove_lines(self, table: pa.Table) -> pa.Table:
        if self.settings.lines is None:
            return table
        texts, count, size = lines.remove(table["text"], self.boilerplate)
        changed = with_text(table, texts)
        enough = pc.greater_equal(pc.utf8_length(changed["text"]), self.settings.lines.min_characters)
        after = changed.filter(enough)
        # The examples show the original text, because nothing is left of the changed one.
        self._drop("lines", "lines.emptied", table.filter(pc.invert(enough)), table, after)
        self.row_counts["lines"].counts.update({"pieces taken out": count, "characters taken out": size})
        return after

    def _sample(self, table: pa.Table) -> pa.Table:
        """Keep the fraction of each source and language that the mixture asks for."""
        if not self.settings.rates:
            return table
        groups = zip(table["source"].to_pylist(), table["language"].to_pylist(), strict=True)
        rates = np.array([self.settings.rates.get(f"{source}/{language}", 1.0) for source, language in groups])
        kept = pa.array(uniform(table["key"].to_numpy(), self.settings.seed, "mixture") < rates)
        after = table.filter(kept)
        self._drop("mixture", "mixture.sampled_out", table.filter(pc.invert(kept)), table, after)
        return after

    def _split(self, table: pa.Table) -> dict[str, pa.Table]:
        numbers = uniform(table["key"].to_numpy(), self.settings.seed, "validation")
        held_out = numbers < self.settings.validation
        return {"train": table.filter(pa.array(~held_out)), "validation": table.filter(pa.array(held_out))}

    def _drop(self, step: str, rule: str, dropped: pa.Table, before: pa.Table, after: pa.Table) -> None:
        """Count the rows that a rule dropped, and record them with some examples."""
        self._count(step, before, after, {rule: len(dropped)} if len(dropped) else {})
        if len(dropped):
            self.dropped.write(rule, dropped)

    def _count(self, step: str, before: pa.Table, after: pa.Table, dropped: Mapping[str, int]) -> None:
        counts = self.row_counts[step]
        counts.rows_in, counts.rows_out = counts.rows_in + len(before), counts.rows_out + len(after)
        counts.characters_in += count_characters(before)
        counts.characters_out += count_characters(after)
        counts.dropped.update(dropped)


def _length_bins(lengths: pa.ChunkedArray) -> Counter[str]:
    """Count documents by length in characters, in bins of powers of two."""
    exponents = np.minimum(np.log2(np.maximum(lengths.to_numpy(), 1)).astype(np.int64), _LENGTH_BINS)
    bins, counts = np.unique(exponents, return_counts=True)
    return Counter({str(2**i): int(count) for i, count in zip(bins.tolist(), counts.tolist(), strict=True)})


def _domain(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").removeprefix("www.")
    except ValueError:
        return ""
