"""The rows of a part in batches of bounded size; every row without text becomes a reject."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headstart.corpus.read import tables
from headstart.corpus.read.formats import BadRow, RawRow, ReadOptions, plain, suffix_of
from headstart.corpus.read.sources import FORMATS, SourceConfig, SourcePart
from headstart.corpus.read.streams import too_long

_MAX_ROWS, _MAX_REJECTS = 1 << 16, 1 << 13
"""Limits of one batch, however short its rows are: a reject takes about 600 bytes until it is written."""
_RAW_BYTES = 200

REJECT_SCHEMA = pa.schema(
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
TEXT_SCHEMA = pa.schema([("id", pa.large_string()), ("url", pa.large_string()), ("text", pa.large_string())])


@dataclass
class ReadBatch:
    """Some rows of a part."""

    rows: int = 0
    """Counted where they are read: texts, empty texts and rejects."""
    table: pa.Table = field(default_factory=TEXT_SCHEMA.empty_table)
    rejects: list[dict[str, Any]] = field(default_factory=list)


def read_batches(part: SourcePart, source: SourceConfig, max_bytes: int) -> Iterator[ReadBatch]:
    """Yield the rows of a part, including empty texts, in batches of a few megabytes."""
    if suffix_of(part.path) == "parquet":
        yield from _merge(_read_parquet(part, source, max_bytes))
        return
    options = ReadOptions(
        source.text,
        (source.url,) if source.url else (),
        source.documents == "file",
        part.start,
        part.stop,
        max_bytes,
    )
    yield from _collect(part, source, FORMATS[suffix_of(part.path)](part.path, options))


def _collect(part: SourcePart, source: SourceConfig, rows: Iterator[RawRow]) -> Iterator[ReadBatch]:
    batch, ids, urls, texts, size = ReadBatch(), list[str](), list[str | None](), list[str](), 0
    # Lines of a range are numbered from its start, so their offset identifies them.
    by_offset = suffix_of(part.path) == "jsonl"
    for row in rows:
        if isinstance(row.value, BadRow):
            batch.rejects.append(_reject(part, row.position, row.offset, row.value))
            batch.rows += row.value.rows
        else:
            batch.rows += 1
            extra = row.extra or {}
            ids.append(f"{part.file}@{row.offset}" if by_offset else f"{part.file}:{row.position.rpartition(' ')[2]}")
            urls.append(extra.get(source.url or "url") or extra.get("url") or None)
            texts.append(row.value)
            size += len(row.value)
        if size >= tables.BATCH_BYTES or len(ids) >= _MAX_ROWS or len(batch.rejects) >= _MAX_REJECTS:
            batch.table = pa.table([ids, urls, texts], schema=TEXT_SCHEMA)
            yield batch
            batch, ids, urls, texts, size = ReadBatch(), [], [], [], 0
    batch.table = pa.table([ids, urls, texts], schema=TEXT_SCHEMA)
    if batch.rows:
        yield batch


def _read_parquet(part: SourcePart, source: SourceConfig, max_bytes: int) -> Iterator[ReadBatch]:
    """Read columns as Arrow arrays; a loop over rows is needed only if a text is not UTF-8."""
    first = part.first_row
    columns = [source.text, *([source.url] if source.url else [])]
    stop = tables.groups_of(part.path) if part.stop is None else part.stop
    for batch in tables.batches(part.path, columns, range(part.start, stop)):
        if isinstance(batch, tables.LostRows):
            # One reject for all of them: it counts their number, and a million of them take no memory.
            fault, position = BadRow(batch.reason, rows=batch.rows), "file" if batch.is_whole_file else f"row {first}"
            yield ReadBatch(batch.rows, rejects=[_reject(part, position, first, fault)])
            first += batch.rows
            continue
        output = ReadBatch(batch.num_rows)
        ids = pa.array([f"{part.file}:{first + i}" for i in range(batch.num_rows)], pa.large_string())
        urls = _as_urls(batch.column(1)) if source.url else pa.nulls(batch.num_rows, pa.large_string())
        texts, faults = _as_texts(batch.column(0), max_bytes)
        for i, fault in faults.items():
            output.rejects.append(_reject(part, f"row {first + i}", first + i, fault))
        output.table = pa.table([ids, urls, texts], schema=TEXT_SCHEMA)
        if faults:
            output.table = output.table.filter(pa.array([i not in faults for i in range(batch.num_rows)]))
        first += batch.num_rows
        yield output


def _as_urls(values: pa.Array) -> pa.Array:
    """Decode URLs; an empty one becomes null."""
    try:
        urls = values.cast(pa.large_string())
    except pa.ArrowInvalid:
        decoded = [None if raw is None else raw.decode("utf-8", "replace") for raw in values.to_pylist()]
        urls = pa.array(decoded, pa.large_string())
    return pc.if_else(pc.equal(urls, ""), pa.scalar(None, pa.large_string()), urls)


def _as_texts(values: pa.Array, max_bytes: int) -> tuple[pa.Array, dict[int, BadRow]]:
    """Decode texts, null as empty text, and return them with the faults by row index."""
    faults = dict[int, BadRow]()
    lengths = pc.binary_length(values)
    if (pc.max(lengths).as_py() or 0) > max_bytes:
        for i in pc.indices_nonzero(pc.fill_null(pc.greater(lengths, max_bytes), False)).to_pylist():
            reason = too_long("text", lengths[i].as_py(), max_bytes)
            faults[i] = BadRow(reason, raw=values[i].as_buffer()[:_RAW_BYTES].to_pybytes())
        values = pc.if_else(pc.greater(lengths, max_bytes), pa.scalar(None, values.type), values)
    try:
        return pc.fill_null(values.cast(pa.large_string()), ""), faults
    except pa.ArrowInvalid:
        pass
    texts = list[str]()
    for i, raw in enumerate(values.to_pylist()):
        try:
            texts.append((raw or b"").decode("utf-8"))
        except UnicodeDecodeError as error:
            texts.append("")
            faults[i] = BadRow(f"not UTF-8 (byte 0x{raw[error.start]:02x} at {error.start})", raw=raw)
    return pa.array(texts, pa.large_string()), faults


def _merge(batches: Iterator[ReadBatch]) -> Iterator[ReadBatch]:
    """Join small batches up to the usual size."""
    held = ReadBatch()
    for batch in batches:
        held.rows += batch.rows
        held.rejects += batch.rejects
        held.table = pa.concat_tables([held.table, batch.table])
        if held.table.nbytes >= tables.BATCH_BYTES or len(held.rejects) >= _MAX_REJECTS:
            yield held
            held = ReadBatch()
    if held.rows:
        yield held


def _reject(part: SourcePart, position: str, offset: int, fault: BadRow) -> dict[str, Any]:
    return {
        "source": part.source,
        "file": part.file,
        "place": position,
        "offset": offset,
        "rows": fault.rows,
        "reason": plain(fault.reason),
        "raw": fault.raw[:_RAW_BYTES],
    }
