"""One function per file format: bytes → (place, text or Unreadable), in bounded memory.

Bytes are decoded row by row, so that one bad byte costs one row and not the rest of the file. A file whose
container is torn (gzip, parquet) is an error of its own, because nobody can say how many rows it held.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from headstart.core.errors import DataError
from headstart.core.registry import suggest

_BATCH_ROWS = 256
_CSV_FIELD_CHARACTERS = 2**31 - 1
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why a row could not become text."""

    reason: str


Row = tuple[str, str | Unreadable]
"""The place in the file, such as "row 7", and what stood there."""


def reader_of(path: Path, column: str, documents: str) -> Iterator[Row]:
    """Return an iterator over the rows of a file, chosen by its suffix."""
    suffix = path.name.removesuffix(".gz").rpartition(".")[2]
    if suffix in ("txt", "tokens"):
        return read_text(path, whole_file=documents == "file")
    if suffix not in _TABLES or path.name.endswith(".parquet.gz"):
        raise DataError(
            f"{path} has a suffix that no reader knows",
            allowed="Known: .txt, .tokens, .jsonl, .csv, also with .gz, and .parquet",
            do="Rename or convert the file",
        )
    return _TABLES[suffix](path, column)


def read_text(path: Path, whole_file: bool) -> Iterator[Row]:
    """Yield documents of plain text: the whole file, or blocks between blank lines.

    A line that is not UTF-8 is cut out as a row of its own; the lines around it stay.
    """
    lines: list[str] = []
    ordinal = 0
    for number, raw in enumerate(_lines(path), start=1):
        line = _decode(raw)
        if isinstance(line, Unreadable):
            yield f"line {number}", line
        elif line.strip() or whole_file:
            lines.append(line)
        elif lines:
            yield f"document {ordinal}", "".join(lines).strip("\r\n")
            ordinal, lines = ordinal + 1, []
    if lines:
        yield f"document {ordinal}", "".join(lines).strip("\r\n")


def read_jsonl(path: Path, column: str) -> Iterator[Row]:
    """Yield one text per line of JSON; a first row without the column is an error, a later one a reject."""
    seen_column = False
    for number, raw in enumerate(_lines(path)):
        place = f"row {number}"
        line = _decode(raw)
        if isinstance(line, Unreadable) or not line.strip():
            yield place, line if isinstance(line, Unreadable) else ""
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield place, Unreadable(f"not JSON ({error})")
            continue
        if not isinstance(record, dict):
            yield place, Unreadable(f"a JSON {type(record).__name__}, not an object")
        elif column not in record:
            if not seen_column:
                _require_column(path, column, list(record))
            yield place, Unreadable(f"no column {column!r}")
        else:
            seen_column = True
            yield place, _as_text(record[column], column)


def read_csv(path: Path, column: str) -> Iterator[Row]:
    """Yield one text per CSV record under a header; undecodable bytes are carried through and reject their record."""
    csv.field_size_limit(_CSV_FIELD_CHARACTERS)
    lines = (raw.decode("utf-8", "surrogateescape") for raw in _lines(path))
    records = csv.reader(lines, strict=True)
    header = next(records, [])
    _require_column(path, column, header)
    position, number = header.index(column), -1
    while True:
        opened, number = records.line_num + 1, number + 1
        try:
            record = next(records, None)
        except csv.Error as error:
            if "unexpected end of data" in str(error):
                raise DataError(
                    f"{path}: the record at line {opened} opens a quote that is never closed",
                    do="Mend the quotes of that line",
                ) from error
            yield f"row {number}", Unreadable(f"not CSV ({error})")
            continue
        if record is None:
            return
        if not record:
            yield f"row {number}", ""
        elif len(record) != len(header):
            yield f"row {number}", Unreadable(f"{len(record)} fields where the header has {len(header)}")
        else:
            yield f"row {number}", _as_text(record[position], column)


def read_parquet(path: Path, column: str) -> Iterator[Row]:
    """Yield one text per row, a small batch of one row group at a time, without trusting that it is UTF-8."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _require_column(path, column, file.schema_arrow.names)
            _require_strings(path, column, file.schema_arrow.field(column).type)
            number = 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=[column]):
                values = batch.column(0)
                if pa.types.is_dictionary(values.type):
                    values = values.dictionary_decode()
                for value in values.cast(pa.large_binary()).to_pylist():
                    yield f"row {number}", "" if value is None else _decode(value)
                    number += 1
            if number != file.metadata.num_rows:
                raise DataError(
                    f"{path} promises {file.metadata.num_rows:,} rows and gave {number:,}", do="Restore the file"
                )
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet ({error})", do="Restore the file or take it out") from error


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a plain or gzipped file, without a byte order mark."""
    try:
        with _open(path) as file:
            first = file.readline().removeprefix(_BOM)
            if first:
                yield first
            yield from file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is a torn gzip file ({error})", do="Fetch the file again or take it out") from error


def _open(path: Path) -> BinaryIO:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _decode(raw: bytes) -> str | Unreadable:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return Unreadable(f"not UTF-8 (byte 0x{raw[error.start]:02x} at {error.start})")


def _as_text(value: Any, column: str) -> str | Unreadable:
    """Accept text alone: a missing value is empty, and lone surrogates cannot be written as UTF-8 again."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return Unreadable(f"column {column!r} holds a {type(value).__name__}, not text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        return Unreadable(f"not Unicode text (lone surrogate or bad byte at {error.start})")
    return value


def _require_column(path: Path, column: str, columns: list[str]) -> None:
    if column not in columns:
        raise DataError(
            f"{path.name} has no column {column!r}{suggest(column, columns)}",
            allowed=f"It has: {', '.join(columns) or 'no columns at all'}",
            do="Set corpus.text",
        )


def _require_strings(path: Path, column: str, kind: Any) -> None:
    import pyarrow.types as types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) or types.is_null(kind)):
        raise DataError(
            f"column {column!r} of {path.name} holds {kind}", allowed="Text is needed", do="Set corpus.text"
        )


_TABLES: dict[str, Callable[[Path, str], Iterator[Row]]] = {
    "jsonl": read_jsonl,
    "csv": read_csv,
    "parquet": read_parquet,
}
