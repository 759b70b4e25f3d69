"""One function per file format: bytes → rows, each with a text or the reason why there is none, in bounded memory.

Bytes are decoded row by row, so that one bad byte costs one row and not the rest of the file. A fault of the whole file
(a corrupt archive, a missing column) carries the error that a strict reader raises.
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
from headstart.corpus.read import streams, tables, urls
from headstart.corpus.read.stores import StoredObject
from headstart.corpus.read.streams import Line

_CSV_FIELD_CHARACTERS = 2**31 - 1
_CSV_RECORD_LINES = 10_000
"""A record of more lines has an open quote, not a long text. Without a limit, one quote costs a pass over the file."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """Why a row cannot be read as text, and the error that a reader raises if it does not accept the fault."""

    reason: str
    error: DataError | None = field(default=None, compare=False)
    rows: int = 1
    raw: bytes = b""


class RawRow(NamedTuple):
    """One row of a file: its position, such as "row 7", its text or fault, and its offset in the decompressed bytes."""

    position: str
    value: str | BadRow
    offset: int = -1
    extra: dict[str, str | None] | None = None
    """Values of other columns that the options ask for (a URL, an id)."""


@dataclass(frozen=True)
class ReadOptions:
    """What to read of a file."""

    column: str = "text"
    extra_columns: tuple[str, ...] = ()
    """Columns read in addition to the text."""
    whole_file: bool = False
    """The whole file is one document; otherwise blank lines separate documents in plain text."""
    start: int = 0
    """The first byte (JSON Lines) or row group (Parquet) to read."""
    stop: int | None = None
    """The byte or row group at which to stop; None reads to the end."""
    max_bytes: int | None = None
    """A longer line, record or page is rejected."""


def reader_of(
    path: Path | StoredObject | str, column: str, documents: str, start: int = 0, stop: int | None = None
) -> Iterator[RawRow]:
    """Return an iterator over the rows of a file, or of a range of one (see `ReadOptions`), selected by its suffix."""
    options = ReadOptions(column, whole_file=documents == "file", start=start, stop=stop)
    suffix = suffix_of(path if isinstance(path, str) else path.name)
    if suffix not in READERS:
        raise DataError(
            f"{urls.without_options(str(path))} has an unsupported suffix",
            allowed="Supported: .txt, .tokens, .jsonl, .csv, each also with .gz or .zst, and .parquet",
            do="Rename or convert the file",
        )
    return READERS[suffix](str(path), options)


def suffix_of(path: str) -> str:
    """Return the suffix that names the format, without that of a compression.

    It is empty for compressed Parquet, which is not a format that can be read.
    """
    compression = streams.compression_of(path)
    name = urls.without_options(path)
    suffix = (name[: -len(compression) - 1] if compression else name).rpartition(".")[2].lower()
    return "" if compression and suffix == "parquet" else suffix


def printable(name: str) -> str:
    """Return a file name that can be written as UTF-8: invalid bytes become escapes, which stay distinct."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def read_text(path: str, options: ReadOptions) -> Iterator[RawRow]:
    """Yield the documents of plain text: the whole file, or blocks between blank lines.

    A line that is not UTF-8 is rejected as a separate row; the lines around it are kept. Of a document that is too
    long, only the size is held in memory.
    """
    held: list[str] = []
    number = begin = size = 0
    max_bytes = math.inf if options.max_bytes is None else options.max_bytes
    for line_number, line in enumerate(streams.lines(path, max_bytes=options.max_bytes), start=1):
        text = decode_line(line, path)
        if isinstance(text, BadRow):
            yield RawRow(f"line {line_number}", text, line.offset)
        elif text.strip() or options.whole_file:
            begin = begin if size else line.offset
            size += len(line.raw)
            if size > max_bytes:
                held.clear()
            else:
                held.append(text)
        elif size:
            yield RawRow(f"document {number}", _document(held, size, max_bytes), begin)
            number, held, size = number + 1, [], 0
    if size:
        yield RawRow(f"document {number}", _document(held, size, max_bytes), begin)


def read_jsonl(path: str, options: ReadOptions) -> Iterator[RawRow]:
    """Yield one text per line of JSON; a row without the column is a reject, and a file without it is an error."""
    has_column: bool | None = None
    for number, line in enumerate(streams.lines(path, options.start, options.stop, options.max_bytes)):
        # Rows are counted from the start of the range. In a later range, their offset states where they are.
        position, text = f"byte {line.offset}" if options.start else f"row {number}", decode_line(line, path)
        if isinstance(text, BadRow) or not text.strip():
            yield RawRow(position, text if isinstance(text, BadRow) else "", line.offset)
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield RawRow(position, BadRow(f"not JSON ({error})", raw=line.raw), line.offset)
            continue
        if not isinstance(record, dict):
            fault = BadRow(f"a JSON {type(record).__name__}, not an object", raw=line.raw)
            yield RawRow(position, fault, line.offset)
        elif options.column not in record:
            if has_column is None:
                has_column = _has_key(path, options)
            missing = None if has_column else tables.no_column(path, options.column, list(record))
            yield RawRow(position, BadRow(f"no column {options.column!r}", missing, raw=line.raw), line.offset)
        else:
            has_column = True
            extra = {name: plain(record.get(name)) for name in options.extra_columns}
            yield RawRow(position, as_text(record[options.column], options.column), line.offset, extra)


def _has_key(path: str, options: ReadOptions) -> bool:
    """Return whether any row of a JSON Lines file has the column; reads up to the first that has it."""
    for line in streams.lines(path, max_bytes=options.max_bytes):
        text = decode_line(line, path)
        try:
            record = None if isinstance(text, BadRow) else json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and options.column in record:
            return True
    return False


def read_csv(path: str, options: ReadOptions) -> Iterator[RawRow]:
    """Yield one text per CSV record under a header.

    Bytes that cannot be decoded are carried through and reject their record. If a record of several lines is invalid,
    only its first line is rejected and reading resumes at the next: an open quote must not swallow good rows.
    """
    csv.field_size_limit(_CSV_FIELD_CHARACTERS)
    feed = _CsvLines(streams.lines(path, max_bytes=options.max_bytes))
    header, number = feed.record() or [], 0
    if isinstance(header, csv.Error) or options.column not in header:
        error = tables.no_column(path, options.column, [] if isinstance(header, csv.Error) else header)
        yield RawRow("row 0", BadRow(error.found, error))
        # A separate row, because a strict reader stops at the first one and need not count the others.
        if (others := feed.count_records(0 if isinstance(header, csv.Error) else len(header)) - 1) > 0:
            yield RawRow("row 1", BadRow(error.found, error, others))
        return
    column, max_bytes = header.index(options.column), math.inf if options.max_bytes is None else options.max_bytes
    while (record := feed.record()) is not None:
        position, offset = f"row {number}", feed.taken[0].offset
        number += 1
        if not isinstance(record, csv.Error) and len(record) == len(header):
            text = as_text(record[column], options.column)
            value = text if feed.size <= max_bytes else _too_long("record", feed.size, max_bytes)
            extra = {
                name: plain(record[header.index(name)]) if name in header else None for name in options.extra_columns
            }
            yield RawRow(position, value, offset, extra)
        elif not record:
            yield RawRow(position, "", offset)
        else:
            raw, line_number = feed.taken[0].raw, feed.number + 1
            feed.give_back()
            yield RawRow(position, _bad_record(path, record, len(header), line_number, raw), offset)


def read_parquet(path: str, options: ReadOptions) -> Iterator[RawRow]:
    """Yield one text per row, in small batches of one row group, without assuming valid UTF-8."""
    number = 0
    groups = range(options.start, tables.groups_of(path) if options.stop is None else options.stop)
    for batch in tables.batches(path, (options.column,), groups):
        if isinstance(batch, tables.LostRows):
            position = "file" if batch.is_whole_file else f"row {number}"
            yield RawRow(position, BadRow(batch.reason, batch.error, batch.rows))
            number += batch.rows
        else:
            for value in batch.column(0).to_pylist():
                yield RawRow(f"row {number}", "" if value is None else utf8(value), number)
                number += 1


def decode_line(line: Line, path: str) -> str | BadRow:
    """Return the text of a line, or why it has none; damage to the whole file carries an error for strict readers."""
    if line.fault:
        found = f"{urls.without_options(path)} cannot be read: {line.fault}"
        return BadRow(line.fault, DataError(found, do="Restore the file or remove it from the recipe"))
    return utf8(line.raw)


def utf8(raw: bytes) -> str | BadRow:
    """Decode strictly as UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return BadRow(f"not UTF-8 (byte 0x{raw[error.start]:02x} at {error.start})", raw=raw)


def as_text(value: Any, column: str) -> str | BadRow:
    """Return a value if it is text; null becomes empty text, and lone surrogates, which UTF-8 cannot write, a fault."""
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
    """Return the value of an extra column as text that can be written, or None."""
    return None if value is None else str(value).encode("utf-8", "replace").decode("utf-8")


def _document(lines: list[str], size: int, max_bytes: float) -> str | BadRow:
    return _too_long("document", size, max_bytes) if size > max_bytes else "".join(lines).strip("\r\n")


def _too_long(what: str, size: int, max_bytes: float) -> BadRow:
    return BadRow(streams.too_long(what, size, max_bytes))


def _bad_record(path: str, record: list[str] | csv.Error, width: int, line: int, raw: bytes) -> BadRow:
    if not isinstance(record, csv.Error):
        return BadRow(f"{len(record)} fields where the header has {width}", raw=raw)
    if "unexpected end of data" not in str(record):
        return BadRow(f"not CSV ({record})", raw=raw)
    error = DataError(
        f"{urls.without_options(path)}: the record at line {line} opens a quote that is never closed",
        do="Fix the quotes of that line",
    )
    return BadRow("an open quote that is never closed", error, raw=raw)


class _CsvLines:
    """CSV records parsed from lines; all lines of an invalid record but the first can be given back."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines, self._waiting = lines, list[Line]()
        self._reader = csv.reader(self._feed(), strict=True)
        self.taken: list[Line] = []
        self.number = self.size = 0

    def record(self) -> list[str] | csv.Error | None:
        """Return the next record, the error that it causes, or None at the end; `taken` holds its lines."""
        self.number += len(self.taken)
        self.taken, self.size = [], 0
        try:
            return next(self._reader, None)
        except csv.Error as error:
            self._reader = csv.reader(self._feed(), strict=True)
            return error

    def count_records(self, width: int) -> int:
        """Count the remaining records, including invalid ones."""
        count = 0
        while (record := self.record()) is not None:
            count += 1
            if isinstance(record, csv.Error) or len(record) not in (0, width):
                self.give_back()
        return count

    def give_back(self) -> None:
        """Give back all lines of the last record but the first, to be parsed again."""
        self._waiting = [*self.taken[1:], *self._waiting]
        del self.taken[1:]

    def _feed(self) -> Iterator[str]:
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
