"""Rows of a part gathered into batches of bounded size, and every row that is none written down as a reject."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headstart.core.errors import DataError
from headstart.corpus import tables
from headstart.corpus.formats import Reading, Row, Unreadable, suffix_of
from headstart.corpus.sources import KNOWN, Part, SourceConfig

_BATCH_BYTES = 8 << 20
_RAW_BYTES = 200

REJECTS = pa.schema(
    [
        ("source", pa.string()),
        ("file", pa.string()),
        ("place", pa.string()),
        ("offset", pa.int64()),
        ("rows", pa.int64()),
        ("reason", pa.string()),
        ("raw", pa.binary()),
    ]
)
TEXTS = pa.schema([("id", pa.large_string()), ("url", pa.large_string()), ("text", pa.large_string())])


@dataclass
class ReadBatch:
    """Some rows of a part."""

    rows: int = 0
    """Counted where they are read: texts, empty ones and rejects."""
    table: pa.Table = field(default_factory=TEXTS.empty_table)
    rejects: list[dict[str, Any]] = field(default_factory=list)


def read_batches(part: Part, source: SourceConfig, longest: int) -> Iterator[ReadBatch]:
    """Yield the rows of a part, texts of nothing among them, in batches of a few megabytes."""
    if suffix_of(part.path) == "parquet":
        yield from _merged(_parquet(part, source))
        return
    reading = Reading(
        source.text,
        (source.url,) if source.url else (),
        source.documents == "file",
        part.start,
        part.stop,
        longest,
    )
    yield from _gathered(part, source, KNOWN[suffix_of(part.path)](part.path, reading))


def _gathered(part: Part, source: SourceConfig, rows: Iterator[Row]) -> Iterator[ReadBatch]:
    batch, ids, urls, texts, size = ReadBatch(), list[str](), list[str | None](), list[str](), 0
    name = PurePosixPath(part.path).name
    for row in rows:
        if isinstance(row.value, Unreadable):
            batch.rejects.append(_reject(part, row.place, row.offset, row.value))
            batch.rows += row.value.rows
            continue
        batch.rows += 1
        # Lines of a range are numbered from its beginning, so it is their offset that names them.
        mark = f"@{row.offset}" if suffix_of(part.path) == "jsonl" else f":{row.place.rpartition(' ')[2]}"
        ids.append(f"{name}{mark}")
        urls.append((row.kept or {}).get(source.url or "url") or (row.kept or {}).get("url"))
        texts.append(row.value)
        size += len(row.value)
        if size >= _BATCH_BYTES:
            batch.table = pa.table([ids, urls, texts], schema=TEXTS)
            yield batch
            batch, ids, urls, texts, size = ReadBatch(), [], [], [], 0
    batch.table = pa.table([ids, urls, texts], schema=TEXTS)
    if batch.rows:
        yield batch


def _parquet(part: Part, source: SourceConfig) -> Iterator[ReadBatch]:
    """Read columns as they lie, without a loop over rows unless some text is no UTF-8."""
    name, number = PurePosixPath(part.path).name, part.first_row
    columns = [source.text, *([source.url] if source.url else [])]
    stop = tables.groups_of(part.path) if part.stop is None else part.stop
    for batch in tables.batches(part.path, columns, range(part.start, stop)):
        if isinstance(batch, DataError):
            yield ReadBatch(1, rejects=[_reject(part, "file", 0, Unreadable(str(batch)))])
            return
        if isinstance(batch, tables.Lost):
            lost = Unreadable(batch.reason, rows=batch.rows)
            yield ReadBatch(batch.rows, rejects=[_reject(part, f"row {number}", number, lost)])
            number += batch.rows
            continue
        read = ReadBatch(batch.num_rows)
        ids = pa.array([f"{name}:{number + place}" for place in range(batch.num_rows)], pa.large_string())
        urls = _as_strings(batch.column(1))[0] if source.url else pa.nulls(batch.num_rows, pa.large_string())
        texts, bad = _as_strings(batch.column(0))
        for place, fault in bad.items():
            read.rejects.append(_reject(part, f"row {number + place}", number + place, fault))
        read.table = pa.table([ids, urls, texts], schema=TEXTS)
        if bad:
            read.table = read.table.filter(pa.array([place not in bad for place in range(batch.num_rows)]))
        number += batch.num_rows
        yield read


def _as_strings(values: pa.Array) -> tuple[pa.Array, dict[int, Unreadable]]:
    """Return bytes as texts, nulls as empty ones, and why some cannot be."""
    try:
        return pc.fill_null(values.cast(pa.large_string()), ""), {}
    except pa.ArrowInvalid:
        pass
    texts, bad = list[str](), dict[int, Unreadable]()
    for place, raw in enumerate(values.to_pylist()):
        try:
            texts.append((raw or b"").decode("utf-8"))
        except UnicodeDecodeError as error:
            texts.append("")
            bad[place] = Unreadable(f"not UTF-8 (byte 0x{raw[error.start]:02x} at {error.start})", raw=raw)
    return pa.array(texts, pa.large_string()), bad


def _merged(batches: Iterator[ReadBatch]) -> Iterator[ReadBatch]:
    """Join small batches up to the usual size."""
    held = ReadBatch()
    for batch in batches:
        held.rows += batch.rows
        held.rejects += batch.rejects
        held.table = pa.concat_tables([held.table, batch.table])
        if held.table.nbytes >= _BATCH_BYTES:
            yield held
            held = ReadBatch()
    if held.rows:
        yield held


def _reject(part: Part, place: str, offset: int, fault: Unreadable) -> dict[str, Any]:
    return {
        "source": part.source,
        "file": PurePosixPath(part.path).name,
        "place": place,
        "offset": offset,
        "rows": fault.rows,
        "reason": fault.reason,
        "raw": fault.raw[:_RAW_BYTES],
    }
