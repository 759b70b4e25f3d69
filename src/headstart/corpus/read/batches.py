"""Rows of a part gathered into batches of bounded size, and every row that is none written down as a reject."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headstart.corpus.read import tables
from headstart.corpus.read.formats import BadRow, RawRow, ReadOptions, plain, suffix_of
from headstart.corpus.read.sources import KNOWN, SourceConfig, SourcePart
from headstart.corpus.read.streams import too_long

_MOST_ROWS, _MOST_REJECTS = 1 << 16, 1 << 13
"""In one batch, however short they are: a reject takes some 600 bytes until it is written."""
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


def read_batches(part: SourcePart, source: SourceConfig, longest: int) -> Iterator[ReadBatch]:
    """Yield the rows of a part, texts of nothing among them, in batches of a few megabytes."""
    if suffix_of(part.path) == "parquet":
        yield from _merged(_parquet(part, source, longest))
        return
    reading = ReadOptions(
        source.text,
        (source.url,) if source.url else (),
        source.documents == "file",
        part.start,
        part.stop,
        longest,
    )
    yield from _gathered(part, source, KNOWN[suffix_of(part.path)](part.path, reading))


def _gathered(part: SourcePart, source: SourceConfig, rows: Iterator[RawRow]) -> Iterator[ReadBatch]:
    batch, ids, urls, texts, size = ReadBatch(), list[str](), list[str | None](), list[str](), 0
    # Lines of a range are numbered from its beginning, so it is their offset that names them.
    by_offset = suffix_of(part.path) == "jsonl"
    for row in rows:
        if isinstance(row.value, BadRow):
            batch.rejects.append(_reject(part, row.place, row.offset, row.value))
            batch.rows += row.value.rows
        else:
            batch.rows += 1
            mark = f"@{row.offset}" if by_offset else f":{row.place.rpartition(' ')[2]}"
            ids.append(f"{part.file}{mark}")
            urls.append((row.kept or {}).get(source.url or "url") or (row.kept or {}).get("url") or None)
            texts.append(row.value)
            size += len(row.value)
        if size >= tables.BATCH_BYTES or len(ids) >= _MOST_ROWS or len(batch.rejects) >= _MOST_REJECTS:
            batch.table = pa.table([ids, urls, texts], schema=TEXTS)
            yield batch
            batch, ids, urls, texts, size = ReadBatch(), [], [], [], 0
    batch.table = pa.table([ids, urls, texts], schema=TEXTS)
    if batch.rows:
        yield batch


def _parquet(part: SourcePart, source: SourceConfig, longest: int) -> Iterator[ReadBatch]:
    """Read columns as they lie, without a loop over rows unless some text is no UTF-8."""
    number = part.first_row
    columns = [source.text, *([source.url] if source.url else [])]
    stop = tables.groups_of(part.path) if part.stop is None else part.stop
    for batch in tables.batches(part.path, columns, range(part.start, stop)):
        if isinstance(batch, tables.LostRows):
            # One reject for all of them: it carries their number into the books, and a million of them cost no memory.
            lost, where = BadRow(batch.reason, rows=batch.rows), "file" if batch.is_whole_file else f"row {number}"
            yield ReadBatch(batch.rows, rejects=[_reject(part, where, number, lost)])
            number += batch.rows
            continue
        read = ReadBatch(batch.num_rows)
        ids = pa.array([f"{part.file}:{number + place}" for place in range(batch.num_rows)], pa.large_string())
        urls = _addresses(batch.column(1)) if source.url else pa.nulls(batch.num_rows, pa.large_string())
        texts, bad = _as_strings(batch.column(0), longest)
        for place, fault in bad.items():
            read.rejects.append(_reject(part, f"row {number + place}", number + place, fault))
        read.table = pa.table([ids, urls, texts], schema=TEXTS)
        if bad:
            read.table = read.table.filter(pa.array([place not in bad for place in range(batch.num_rows)]))
        number += batch.num_rows
        yield read


def _addresses(values: pa.Array) -> pa.Array:
    """Return bytes as addresses, null where there is none."""
    try:
        found = values.cast(pa.large_string())
    except pa.ArrowInvalid:
        shown = [None if raw is None else raw.decode("utf-8", "replace") for raw in values.to_pylist()]
        found = pa.array(shown, pa.large_string())
    return pc.if_else(pc.equal(found, ""), pa.scalar(None, pa.large_string()), found)


def _as_strings(values: pa.Array, longest: int) -> tuple[pa.Array, dict[int, BadRow]]:
    """Return bytes as texts, nulls as empty ones, and why some cannot be."""
    bad = dict[int, BadRow]()
    lengths = pc.binary_length(values)
    if (pc.max(lengths).as_py() or 0) > longest:
        for place in pc.indices_nonzero(pc.fill_null(pc.greater(lengths, longest), False)).to_pylist():
            reason = too_long("text", lengths[place].as_py(), longest)
            bad[place] = BadRow(reason, raw=values[place].as_buffer()[:_RAW_BYTES].to_pybytes())
        values = pc.if_else(pc.greater(lengths, longest), pa.scalar(None, values.type), values)
    try:
        return pc.fill_null(values.cast(pa.large_string()), ""), bad
    except pa.ArrowInvalid:
        pass
    texts = list[str]()
    for place, raw in enumerate(values.to_pylist()):
        try:
            texts.append((raw or b"").decode("utf-8"))
        except UnicodeDecodeError as error:
            texts.append("")
            bad[place] = BadRow(f"not UTF-8 (byte 0x{raw[error.start]:02x} at {error.start})", raw=raw)
    return pa.array(texts, pa.large_string()), bad


def _merged(batches: Iterator[ReadBatch]) -> Iterator[ReadBatch]:
    """Join small batches up to the usual size."""
    held = ReadBatch()
    for batch in batches:
        held.rows += batch.rows
        held.rejects += batch.rejects
        held.table = pa.concat_tables([held.table, batch.table])
        if held.table.nbytes >= tables.BATCH_BYTES or len(held.rejects) >= _MOST_REJECTS:
            yield held
            held = ReadBatch()
    if held.rows:
        yield held


def _reject(part: SourcePart, place: str, offset: int, fault: BadRow) -> dict[str, Any]:
    return {
        "source": part.source,
        "file": part.file,
        "place": place,
        "offset": offset,
        "rows": fault.rows,
        "reason": plain(fault.reason),
        "raw": fault.raw[:_RAW_BYTES],
    }
