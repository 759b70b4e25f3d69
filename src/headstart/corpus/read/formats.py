"""One function per file format: bytes → rows, each a text or the reason why there is none, in bounded memory.

Bytes are decoded row by row, so that one bad byte costs one row and not the rest of the file. A fault that says more
of a file than of a row (a torn container, a column that is not there) carries the error that a strict reader raises.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from headstart.core.errors import DataError
from headstart.corpus.read import addresses, streams, tables
from headstart.corpus.read.streams import Line

_CSV_FIELD_CHARACTERS = 2**31 - 1
_CSV_RECORD_LINES = 10_000
"""A record over more lines has an open quote, not a long text: without a limit one quote costs a pass over the file."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """Why a row could not become text, and the error to raise where that may not be passed over."""

    reason: str
    error: DataError | None = field(default=None, compare=False)
    rows: int = 1
    raw: bytes = b""


class RawRow(NamedTuple):
    """The place in the file, such as "row 7", what stood there, and where that begins in the unpacked bytes."""

    place: str
    value: str | BadRow
    offset: int = -1
    kept: dict[str, str | None] | None = None
    """Other columns that were asked for (an address, an id)."""


@dataclass(frozen=True)
class ReadOptions:
    """What is read of a file: the column, what is kept beside it, and how it is cut."""

    column: str = "text"
    keep: tuple[str, ...] = ()
    whole_file: bool = False
    start: int = 0
    stop: int | None = None
    longest: int | None = None


def reader_of(path: Path, column: str, documents: str) -> Iterator[RawRow]:
    """Return an iterator over the rows of a file, chosen by its suffix."""
    reading = ReadOptions(column, whole_file=documents == "file")
    suffix = suffix_of(path.name)
    if suffix not in READERS:
        raise DataError(
            f"{path} has a suffix that no reader knows",
            allowed="Known: .txt, .tokens, .jsonl, .csv, also with .gz or .zst, and .parquet",
            do="Rename or convert the file",
        )
    return READERS[suffix](str(path), reading)


def suffix_of(path: str) -> str:
    """Return the suffix that names the format, before that of a packer; nothing for packed parquet, which is none."""
    packer = streams.packer_of(path)
    name = addresses.bare(path)[: -len(packer) - 1] if packer else addresses.bare(path)
    suffix = name.rpartition(".")[2].lower()
    return "" if packer and suffix == "parquet" else suffix


def printable(name: str) -> str:
    """Return a file's name so that it can be written: bytes that are no UTF-8 as escapes, which stay different."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def read_text(path: str, reading: ReadOptions) -> Iterator[RawRow]:
    """Yield documents of plain text: the whole file, or blocks between blank lines.

    A line that is not UTF-8 is cut out as a row of its own; the lines around it stay. Of a document that is too long
    only the size is held.
    """
    held: list[str] = []
    ordinal = begun = size = 0
    longest = math.inf if reading.longest is None else reading.longest
    for number, line in enumerate(streams.lines(path, longest=reading.longest), start=1):
        text = decoded(line, path)
        if isinstance(text, BadRow):
            yield RawRow(f"line {number}", text, line.offset)
        elif text.strip() or reading.whole_file:
            begun = begun if size else line.offset
            size += len(line.raw)
            if size > longest:
                held.clear()
            else:
                held.append(text)
        elif size:
            yield RawRow(f"document {ordinal}", _document(held, size, longest), begun)
            ordinal, held, size = ordinal + 1, [], 0
    if size:
        yield RawRow(f"document {ordinal}", _document(held, size, longest), begun)


def read_jsonl(path: str, reading: ReadOptions) -> Iterator[RawRow]:
    """Yield one text per line of JSON; a first row without the column is an error, a later one a reject."""
    seen_column = False
    for number, line in enumerate(streams.lines(path, reading.start, reading.stop, reading.longest)):
        # Rows are counted from the beginning of the range, so that further on their offset tells where they stand.
        place, text = f"byte {line.offset}" if reading.start else f"row {number}", decoded(line, path)
        if isinstance(text, BadRow) or not text.strip():
            yield RawRow(place, text if isinstance(text, BadRow) else "", line.offset)
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield RawRow(place, BadRow(f"not JSON ({error})", raw=line.raw), line.offset)
            continue
        if not isinstance(record, dict):
            wrong = BadRow(f"a JSON {type(record).__name__}, not an object", raw=line.raw)
            yield RawRow(place, wrong, line.offset)
        elif reading.column not in record:
            error_ = None if seen_column else tables.no_column(path, reading.column, list(record))
            yield RawRow(place, BadRow(f"no column {reading.column!r}", error_, raw=line.raw), line.offset)
        else:
            seen_column = True
            kept = {name: plain(record.get(name)) for name in reading.keep}
            yield RawRow(place, as_text(record[reading.column], reading.column), line.offset, kept)


def read_csv(path: str, reading: ReadOptions) -> Iterator[RawRow]:
    """Yield one text per CSV record under a header.

    Undecodable bytes are carried through and reject their record. Where a record over several lines proves wrong, its
    first line alone is rejected and reading goes on with the next: an open quote must not swallow good rows.
    """
    csv.field_size_limit(_CSV_FIELD_CHARACTERS)
    feed = _CsvLines(streams.lines(path, longest=reading.longest))
    header, number = feed.record() or [], 0
    if isinstance(header, csv.Error) or reading.column not in header:
        error = tables.no_column(path, reading.column, [] if isinstance(header, csv.Error) else header)
        yield RawRow("row 0", BadRow(error.found, error))
        # Told by itself, since a strict reader ends here and need not count them.
        if (others := feed.rows(0 if isinstance(header, csv.Error) else len(header)) - 1) > 0:
            yield RawRow("row 1", BadRow(error.found, error, others))
        return
    position, longest = header.index(reading.column), math.inf if reading.longest is None else reading.longest
    while (record := feed.record()) is not None:
        place, offset = f"row {number}", feed.taken[0].offset
        number += 1
        if not isinstance(record, csv.Error) and len(record) == len(header):
            kept = {name: plain(record[header.index(name)]) if name in header else None for name in reading.keep}
            text = as_text(record[position], reading.column)
            yield RawRow(place, text if feed.size <= longest else _too_long("record", feed.size, longest), offset, kept)
        elif not record:
            yield RawRow(place, "", offset)
        else:
            raw, opened = feed.taken[0].raw, feed.number + 1
            feed.go_back()
            yield RawRow(place, _bad_record(path, record, len(header), opened, raw), offset)


def read_parquet(path: str, reading: ReadOptions) -> Iterator[RawRow]:
    """Yield one text per row, a small batch of one row group at a time, without trusting that it is UTF-8."""
    number = 0
    groups = range(reading.start, tables.groups_of(path) if reading.stop is None else reading.stop)
    for batch in tables.batches(path, (reading.column,), groups):
        if isinstance(batch, tables.LostRows):
            place = "file" if batch.is_whole_file else f"row {number}"
            yield RawRow(place, BadRow(batch.reason, batch.error, batch.rows))
            number += batch.rows
        else:
            for value in batch.column(0).to_pylist():
                yield RawRow(f"row {number}", "" if value is None else utf8(value), number)
                number += 1


def decoded(line: Line, path: str) -> str | BadRow:
    """Return a line as text, or why it is none; damage to the file as a whole is an error to strict readers."""
    if line.fault:
        advice = "Fetch the file again or take it out"
        return BadRow(line.fault, DataError(f"{path} is a {line.fault}", do=advice))
    return utf8(line.raw)


def utf8(raw: bytes) -> str | BadRow:
    """Decode strictly."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return BadRow(f"not UTF-8 (byte 0x{raw[error.start]:02x} at {error.start})", raw=raw)


def as_text(value: Any, column: str) -> str | BadRow:
    """Accept text alone: a missing value is empty, and lone surrogates cannot be written as UTF-8 again."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return BadRow(f"column {column!r} holds a {type(value).__name__}, not text", raw=repr(value).encode())
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        return BadRow(
            f"not Unicode text (lone surrogate or bad byte at {error.start})", raw=value.encode("utf-8", "replace")
        )
    return value


def plain(value: Any) -> str | None:
    """Return a value kept beside the text as a short text that can be written, or nothing."""
    return None if value is None else str(value).encode("utf-8", "replace").decode("utf-8")


def _document(lines: list[str], size: int, longest: float) -> str | BadRow:
    return _too_long("document", size, longest) if size > longest else "".join(lines).strip("\r\n")


def _too_long(what: str, size: int, longest: float) -> BadRow:
    return BadRow(streams.too_long(what, size, longest))


def _bad_record(path: str, record: list[str] | csv.Error, width: int, line: int, raw: bytes) -> BadRow:
    if not isinstance(record, csv.Error):
        return BadRow(f"{len(record)} fields where the header has {width}", raw=raw)
    if "unexpected end of data" not in str(record):
        return BadRow(f"not CSV ({record})", raw=raw)
    error = DataError(
        f"{path}: the record at line {line} opens a quote that is never closed", do="Mend the quotes of that line"
    )
    return BadRow("an open quote that is never closed", error, raw=raw)


class _CsvLines:
    """Records out of lines, with a way back to the second line of a record that proves wrong."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines, self._waiting = lines, list[Line]()
        self._reader = csv.reader(self._fed(), strict=True)
        self.taken: list[Line] = []
        self.number = self.size = 0

    def record(self) -> list[str] | csv.Error | None:
        """Return the next record, the error in its place, or None at the end; `taken` holds its lines."""
        self.number += len(self.taken)
        self.taken, self.size = [], 0
        try:
            return next(self._reader, None)
        except csv.Error as error:
            self._reader = csv.reader(self._fed(), strict=True)
            return error

    def rows(self, width: int) -> int:
        """Count the records that are left, bad ones with them."""
        count = 0
        while (record := self.record()) is not None:
            count += 1
            if isinstance(record, csv.Error) or len(record) not in (0, width):
                self.go_back()
        return count

    def go_back(self) -> None:
        """Give back all lines of the last record but the first."""
        self._waiting = [*self.taken[1:], *self._waiting]
        del self.taken[1:]

    def _fed(self) -> Iterator[str]:
        while True:
            line = self._waiting.pop(0) if self._waiting else next(self._lines, None)
            if line is None:
                return
            self.taken.append(line)
            self.size += len(line.raw)
            if line.fault:
                raise csv.Error(line.fault)
            if len(self.taken) > _CSV_RECORD_LINES:
                raise csv.Error("unexpected end of data")
            yield line.raw.decode("utf-8", "surrogateescape")


READERS: dict[str, Callable[[str, ReadOptions], Iterator[RawRow]]] = {
    "txt": read_text,
    "tokens": read_text,
    "jsonl": read_jsonl,
    "csv": read_csv,
    "parquet": read_parquet,
}
