"""The first task of each part: read, clean, judge, look for evaluation sets, and take fingerprints.

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
from headstart.corpus.clean.personal import Personal, PersonalConfig, masked
from headstart.corpus.clean.quality import Quality, QualityConfig
from headstart.corpus.clean.unicode import Unicode, UnicodeConfig
from headstart.corpus.dedup import lines
from headstart.corpus.dedup.contamination import Contamination, ContaminationConfig
from headstart.corpus.dedup.fingerprints import SignatureConfig, fingerprints, normal
from headstart.corpus.parts.dropped import Dropped
from headstart.corpus.parts.engine import evaluate
from headstart.corpus.parts.files import PartFiles, finished, part_files
from headstart.corpus.parts.receipt import REJECTS as REJECTED
from headstart.corpus.parts.receipt import RowCounts
from headstart.corpus.parts.steps import CleaningStep, StepOutput, characters
from headstart.corpus.read.batches import REJECTS, ReadBatch, read_batches
from headstart.corpus.read.sources import SourceConfig, SourcePart


class CleanConfig(Section):
    """What is done to each document by itself; null leaves a step out."""

    unicode: UnicodeConfig | None = Field(UnicodeConfig(), description="characters put right")
    language: LanguageConfig | None = Field(LanguageConfig(), description="languages told, and some kept")
    quality: QualityConfig | None = Field(QualityConfig(), description="rules that drop poor documents")
    personal: PersonalConfig | None = Field(PersonalConfig(), description="personal data replaced")


class PartSettings(Section):
    """All that a task must know beside its part."""

    sources: list[SourceConfig]
    clean: CleanConfig
    contamination: ContaminationConfig | None
    signature: SignatureConfig
    longest_mb: float
    folder: Path
    """Where parts are written."""
    table: Path
    """Where the n-grams of evaluation sets lie."""


def clean_part(task: Mapping[str, Any]) -> dict[str, Any]:
    """Clean one part, unless it is finished, and return its books."""
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
    """Build the steps once for a worker process."""
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
    steps.append(Normal())
    if settings.contamination is not None:
        steps.append(Contamination(settings.contamination, settings.table))
    return tuple(steps)


class Normal:
    """Adds the normal form, which evaluation sets and duplicates are told by; drops nothing and keeps no books."""

    name = ""

    def apply(self, table: pa.Table) -> StepOutput:
        """Return the batch with a column more."""
        from daft import col

        made = evaluate(table.select(["text"]), {"normal": normal(col("text"))})
        return StepOutput(table.append_column("normal", made["normal"]))


class _Cleaner:
    """The state of one part on its way."""

    def __init__(self, settings: PartSettings, part: SourcePart, files: PartFiles) -> None:
        self.settings, self.part, self.files = settings, part, files
        self.source = next(source for source in settings.sources if source.name == part.source)
        self.steps = _steps(settings.model_dump_json())
        self.books, self.number = RowCounts(), 0
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.bytes = 0
        self.dropped = Dropped(files, self._masked)
        self.first_reject = ""
        for step in self.steps:
            if isinstance(step, Contamination):
                step.found.clear()

    def run(self) -> dict[str, Any]:
        """Clean the part batch by batch and return its note."""
        self.files.write("rejects", REJECTS.empty_table())
        self.dropped.write("read.empty", self._opened(ReadBatch()))
        batches = read_batches(self.part, self.source, int(self.settings.longest_mb * 1e6))
        while (batch := self._timed("read", lambda: next(batches, None))) is not None:
            self._batch(batch)
        if not self.number:
            self._keep(self._cleaned(self._opened(ReadBatch())))
        self.books.check()
        found = [item for step in self.steps if isinstance(step, Contamination) for item in sorted(step.found)]
        return {
            "part": self.part.number,
            "source": self.part.source,
            "books": self.books.to_json(),
            "seconds": {name: round(seconds, 3) for name, seconds in self.seconds.items()},
            "bytes": self.bytes,
            "items_found": found,
            "first_reject": self.first_reject,
            "documents": self.number,
        }

    def _batch(self, batch: ReadBatch) -> None:
        kept = self._cleaned(self._opened(batch))
        if len(kept):
            self._keep(kept)

    def _opened(self, batch: ReadBatch) -> pa.Table:
        """Book what was read, and put rejects and empty rows aside."""
        books = self.books["read"]
        books.rows_in += batch.rows
        if batch.rejects:
            first = batch.rejects[0]
            self.first_reject = self.first_reject or f"{first['file']}, {first['place']}: {first['reason']}"
            books.dropped[REJECTED] += sum(reject["rows"] for reject in batch.rejects)
            shown = [{**reject, "raw": self._masked_bytes(reject["raw"])} for reject in batch.rejects]
            self.files.write("rejects", pa.Table.from_pylist(shown, REJECTS))
        source = pa.array([self.part.source] * len(batch.table), pa.string())
        table = batch.table.append_column("source", source)
        empty = pc.equal(pc.binary_length(pc.utf8_trim_whitespace(table["text"])), 0)
        number = int(pc.sum(empty).as_py() or 0)
        if number:
            books.dropped["read.empty"] += number
            self.dropped.write("read.empty", table.filter(empty))
            table = table.filter(pc.invert(empty))
        size = characters(table)
        self.bytes += int(pc.sum(pc.binary_length(table["text"])).as_py() or 0)
        books.rows_out, books.characters_in = books.rows_out + len(table), books.characters_in + size
        books.characters_out += size
        return table

    def _cleaned(self, table: pa.Table) -> pa.Table:
        for step in self.steps:
            outcome = self._timed(step.name or "fingerprints", partial(step.apply, table))
            if not step.name:
                table = outcome.table
                continue
            books, rows, size = self.books[step.name], len(table), characters(table)
            table = outcome.table
            if outcome.verdict is not None and outcome.verdict.null_count < rows:
                for rule in pc.unique(outcome.verdict).drop_null().to_pylist():
                    dropped = table.filter(pc.equal(outcome.verdict, rule))
                    books.dropped[rule] += len(dropped)
                    self.dropped.write(rule, dropped)
                table = table.filter(pc.is_null(outcome.verdict))
            books.rows_in, books.rows_out = books.rows_in + rows, books.rows_out + len(table)
            books.characters_in, books.characters_out = (
                books.characters_in + size,
                books.characters_out + characters(table),
            )
            books.counts.update(outcome.counts)
        return table

    def _masked(self, text: str) -> str:
        """Return what a person may see of a text that was put aside before personal data were replaced."""
        personal = self.settings.clean.personal
        return text if personal is None else masked(text, personal)

    def _masked_bytes(self, raw: bytes) -> bytes:
        return self._masked(raw.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def _keep(self, table: pa.Table) -> None:
        """Write the documents that are left, and what duplicates and repeated lines are told by."""
        first = (self.part.number << 32) + self.number
        doc = pa.array(np.arange(first, first + len(table), dtype=np.int64))
        language = table["language"] if "language" in table.column_names else pa.nulls(len(table), pa.string())
        size = pc.utf8_length(table["text"]).cast(pa.int64())
        marks = self._timed("fingerprints", lambda: fingerprints(table["normal"], self.settings.signature))
        told = {"doc": doc, "source": table["source"], "language": language, "characters": size}
        hashed = self._timed("lines", lambda: lines.hashed(doc, table["text"]))
        sets = table["evaluation_sets"] if "evaluation_sets" in table.column_names else _no_sets(len(table))
        written = {
            "documents": pa.table({
                "doc": doc, "id": table["id"], "source": table["source"], "url": table["url"],
                "language": language, "evaluation_sets": sets, "key": marks["key"], "text": table["text"],
            }),
            "fingerprints": pa.table({**told, **{name: marks[name] for name in marks.column_names}}),
            "lines": hashed,
        }  # fmt: skip
        for kind, rows in written.items():
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
