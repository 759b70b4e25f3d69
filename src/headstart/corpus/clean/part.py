"""The first task of each part: read, clean, check against evaluation sets, and compute fingerprints.

read ─ unicode ─ language ─ quality ─ personal ─ contamination ─ documents, fingerprints, lines, dropped, rejects
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from headstart.core.config import Section
from headstart.corpus.clean.language import Language, LanguageConfig
from headstart.corpus.clean.personal import Personal, PersonalConfig, mask
from headstart.corpus.clean.quality import Quality, QualityConfig
from headstart.corpus.clean.unicode import Unicode, UnicodeConfig
from headstart.corpus.dedup import lines
from headstart.corpus.dedup.contamination import Contamination, ContaminationConfig
from headstart.corpus.dedup.fingerprints import SignatureConfig, fingerprints, normalize
from headstart.corpus.parts.dropped import DroppedDocuments
from headstart.corpus.parts.engine import evaluate
from headstart.corpus.parts.files import PartFiles, finished, part_files
from headstart.corpus.parts.receipt import REJECTS, RowCounts
from headstart.corpus.parts.steps import CleaningStep, StepOutput, count_characters
from headstart.corpus.read.batches import REJECT_SCHEMA, ReadBatch, read_batches
from headstart.corpus.read.sources import SourceConfig, SourcePart


class CleanConfig(Section):
    """The cleaning steps that look at one document at a time; null turns a step off."""

    unicode: UnicodeConfig | None = Field(UnicodeConfig(), description="normalize characters and whitespace")
    language: LanguageConfig | None = Field(LanguageConfig(), description="detect languages, and keep some")
    quality: QualityConfig | None = Field(QualityConfig(), description="rules that drop documents of low quality")
    personal: PersonalConfig | None = Field(PersonalConfig(), description="replace personal data")


class PartSettings(Section):
    """Everything that a task needs in addition to its part."""

    sources: list[SourceConfig]
    clean: CleanConfig
    contamination: ContaminationConfig | None
    signature: SignatureConfig
    longest_mb: float
    folder: Path
    """The folder in which parts are written."""
    table: Path
    """The table with the n-grams of the evaluation sets."""


def clean_part(task: Mapping[str, Any]) -> dict[str, Any]:
    """Clean one part, unless it is finished, and return its note with the row counts."""
    settings = _settings(task["settings"])
    part, folder = SourcePart(**task["part"]), settings.folder / "clean"
    before = finished(folder, part.number)
    if before is not None:
        return before
    note: dict[str, Any] = {}
    with part_files(folder, part.number, note) as files:
        note |= _Cleaner(settings, part, files).run()
    return note


@lru_cache(maxsize=4)
def _settings(text: str) -> PartSettings:
    return PartSettings.model_validate_json(text)


@lru_cache(maxsize=4)
def _steps(settings_text: str) -> tuple[CleaningStep, ...]:
    """Build the steps, once per worker process."""
    settings = _settings(settings_text)
    clean, exempt = settings.clean, {source.name: source.without for source in settings.sources if source.without}
    steps: list[CleaningStep] = []
    if clean.unicode is not None:
        steps.append(Unicode(clean.unicode))
    if clean.language is not None:
        steps.append(Language(clean.language))
    if clean.quality is not None:
        steps.append(Quality(clean.quality, exempt))
    if clean.personal is not None:
        steps.append(Personal(clean.personal))
    steps.append(Normalize())
    if settings.contamination is not None:
        steps.append(Contamination(settings.contamination, settings.table))
    return tuple(steps)


class Normalize:
    """Adds the normalized text, by which evaluation sets and duplicates are found; it drops and counts nothing."""

    name = ""

    def apply(self, table: pa.Table) -> StepOutput:
        """Return the batch with the additional column `normal`."""
        from daft import col

        output = evaluate(table.select(["text"]), {"normal": normalize(col("text"))})
        return StepOutput(table.append_column("normal", output["normal"]))


class _Cleaner:
    """Cleans one part and keeps its counts."""

    def __init__(self, settings: PartSettings, part: SourcePart, files: PartFiles) -> None:
        self.settings, self.part, self.files = settings, part, files
        self.source = next(source for source in settings.sources if source.name == part.source)
        self.steps = _steps(settings.model_dump_json())
        self.row_counts, self.number = RowCounts(), 0
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.bytes = 0
        self.dropped = DroppedDocuments(files, self._mask)
        self.first_reject = ""
        for step in self.steps:
            if isinstance(step, Contamination):
                step.found_items.clear()

    def run(self) -> dict[str, Any]:
        """Clean the part batch by batch and return its note."""
        self.files.write("rejects", REJECT_SCHEMA.empty_table())
        self.dropped.write("read.empty", self._open(ReadBatch()))
        batches = read_batches(self.part, self.source, int(self.settings.longest_mb * 1e6))
        while (batch := self._timed("read", lambda: next(batches, None))) is not None:
            kept = self._clean(self._open(batch))
            if len(kept):
                self._write(kept)
        if not self.number:
            self._write(self._clean(self._open(ReadBatch())))
        self.row_counts.check()
        items = [item for step in self.steps if isinstance(step, Contamination) for item in sorted(step.found_items)]
        return {
            "part": self.part.number,
            "source": self.part.source,
            "books": self.row_counts.to_json(),
            "seconds": {name: round(seconds, 3) for name, seconds in self.seconds.items()},
            "bytes": self.bytes,
            "items_found": items,
            "first_reject": self.first_reject,
            "documents": self.number,
        }

    def _open(self, batch: ReadBatch) -> pa.Table:
        """Count the rows of a batch, write its rejects and empty rows, and return the others."""
        counts = self.row_counts["read"]
        counts.rows_in += batch.rows
        if batch.rejects:
            first = batch.rejects[0]
            self.first_reject = self.first_reject or f"{first['file']}, {first['place']}: {first['reason']}"
            counts.dropped[REJECTS] += sum(reject["rows"] for reject in batch.rejects)
            masked = [{**reject, "raw": self._mask_bytes(reject["raw"])} for reject in batch.rejects]
            self.files.write("rejects", pa.Table.from_pylist(masked, REJECT_SCHEMA))
        source = pa.array([self.part.source] * len(batch.table), pa.string())
        table = batch.table.append_column("source", source)
        is_empty = pc.equal(pc.binary_length(pc.utf8_trim_whitespace(table["text"])), 0)
        empty_rows = int(pc.sum(is_empty).as_py() or 0)
        if empty_rows:
            counts.dropped["read.empty"] += empty_rows
            self.dropped.write("read.empty", table.filter(is_empty))
            table = table.filter(pc.invert(is_empty))
        size = count_characters(table)
        self.bytes += int(pc.sum(pc.binary_length(table["text"])).as_py() or 0)
        counts.rows_out, counts.characters_in = counts.rows_out + len(table), counts.characters_in + size
        counts.characters_out += size
        return table

    def _clean(self, table: pa.Table) -> pa.Table:
        """Apply all steps to a batch and return the documents that none of them drops."""
        for step in self.steps:
            output = self._timed(step.name or "fingerprints", partial(step.apply, table))
            if not step.name:
                table = output.table
                continue
            counts, rows, size = self.row_counts[step.name], len(table), count_characters(table)
            table = output.table
            if output.verdict is not None and output.verdict.null_count < rows:
                for rule in pc.unique(output.verdict).drop_null().to_pylist():
                    dropped = table.filter(pc.equal(output.verdict, rule))
                    counts.dropped[rule] += len(dropped)
                    self.dropped.write(rule, dropped)
                table = table.filter(pc.is_null(output.verdict))
            counts.rows_in, counts.rows_out = counts.rows_in + rows, counts.rows_out + len(table)
            counts.characters_in += size
            counts.characters_out += count_characters(table)
            counts.counts.update(output.counts)
        return table

    def _mask(self, text: str) -> str:
        """Mask personal data in a text that was dropped before the step that replaces it."""
        personal = self.settings.clean.personal
        return text if personal is None else mask(text, personal)

    def _mask_bytes(self, raw: bytes) -> bytes:
        return self._mask(raw.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def _write(self, table: pa.Table) -> None:
        """Write the documents that were kept, and the fingerprints and line hashes that find duplicates."""
        first = (self.part.number << 32) + self.number
        doc = pa.array(np.arange(first, first + len(table), dtype=np.int64))
        language = table["language"] if "language" in table.column_names else pa.nulls(len(table), pa.string())
        size = pc.utf8_length(table["text"]).cast(pa.int64())
        marks = self._timed("fingerprints", lambda: fingerprints(table["normal"], self.settings.signature))
        columns = {"doc": doc, "source": table["source"], "language": language, "characters": size}
        hashes = self._timed("lines", lambda: lines.hash_lines(doc, table["text"]))
        sets = table["evaluation_sets"] if "evaluation_sets" in table.column_names else _no_sets(len(table))
        tables = {
            "documents": pa.table({
                "doc": doc, "id": table["id"], "source": table["source"], "url": table["url"],
                "language": language, "evaluation_sets": sets, "key": marks["key"], "text": table["text"],
            }),
            "fingerprints": pa.table({**columns, **{name: marks[name] for name in marks.column_names}}),
            "lines": hashes,
        }  # fmt: skip
        for kind, rows in tables.items():
            self._timed("writing", partial(self.files.write, kind, rows))
        self.number += len(table)

    def _timed(self, name: str, work: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        try:
            return work()
        finally:
            self.seconds[name] += time.perf_counter() - started


def _no_sets(rows: int) -> pa.Array:
    return pa.array([[]] * rows, pa.list_(pa.string()))
