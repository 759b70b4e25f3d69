"""Tables from files as people have them: the encoding, the separator and the shape of JSON are recognized.

pyarrow reads them directly: the loader of `datasets` would first copy every file to a cache in the home folder, and
its errors do not name the faulty row. What pyarrow does not recognize is recognized here.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.json
import pyarrow.parquet

from headstart.core.errors import DataError
from headstart.tasks.class_labels import with_class_names
from headstart.tasks.table_files import TableFiles, TableSource, locate

LONGEST_ROW = 1 << 26
"""In bytes: pyarrow reads a row only if it fits in one block."""
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_SAMPLE = 1 << 16
_BLOCK = 1 << 20


@dataclass(frozen=True)
class TableFormat:
    """How a file is read as a table: what its name says, and what was recognized from its content."""

    suffix: str
    encoding: str = "utf-8"
    separator: str = ","
    is_array: bool = False

    @property
    def is_expected(self) -> bool:
        """True if nothing about the file differs from what its name says."""
        return self == TableFormat(self.suffix, separator="\t" if self.suffix == ".tsv" else ",")

    def __str__(self) -> str:
        parts = ["a JSON array" if self.is_array else self.suffix[1:].upper()]
        if self.suffix == ".csv":
            parts.append(f"separated by {_SEPARATORS[self.separator]}")
        if self.encoding != "utf-8":
            parts.append({"utf-8-sig": "UTF-8 with a byte order mark"}.get(self.encoding, self.encoding.upper()))
        return ", ".join(parts)


def recognize(path: Path, columns: Sequence[str] = ()) -> TableFormat:
    """Return how a file is to be read.

    Args:
        path: the file.
        columns: names that its header should have; they decide between separators.
    """
    suffix = path.suffix.lower()
    if suffix in (".parquet", ".arrow"):
        return TableFormat(suffix)
    encoding = _encoding(path)
    with path.open("rb") as file:
        start = file.read(_SAMPLE).decode(encoding, errors="replace")
    if suffix == ".csv":
        return TableFormat(suffix, encoding, _separator(start, columns))
    if suffix == ".tsv":
        return TableFormat(suffix, encoding, "\t")
    return TableFormat(suffix, encoding, is_array=start.lstrip().startswith("["))


def read(
    source: TableSource, text_columns: Sequence[str] = (), columns: Sequence[str] = ()
) -> tuple[pa.Table, TableFormat]:
    """Read the files of a source as one table and return it with the format that was recognized in the first one.

    Columns of class numbers whose names are known, as `datasets` writes them, contain the names.

    Args:
        source: Parquet, Arrow, CSV, TSV, JSON Lines or JSON files.
        text_columns: columns that are text even if all their values look like numbers.
        columns: names that the header of a CSV file should have.
    """
    located = locate(source)
    read_files = [_read_file(path, located, text_columns, columns or text_columns) for path in located.files]
    parts, formats = zip(*read_files, strict=True)
    if len(parts) == 1:
        return parts[0], formats[0]
    try:
        return pa.concat_tables(parts, promote_options="permissive"), formats[0]
    except pa.ArrowException as error:
        raise DataError(
            f"the files of {located} do not fit together ({error})",
            allowed="In files that are read together, columns of the same name have the same type",
            do="Convert the files",
        ) from error


def _read_file(
    path: Path, located: TableFiles, text_columns: Sequence[str], columns: Sequence[str]
) -> tuple[pa.Table, TableFormat]:
    with explained(path):
        form = recognize(path, columns)
        table = with_class_names(_READERS[form.suffix](path, form, text_columns))
        return with_class_names(table, located.class_names), form


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Explain what a library raises for a file that it cannot read."""
    try:
        yield
    except (pa.ArrowException, csv.Error, OSError, UnicodeError, IndexError) as error:
        raise DataError(
            f"{path} cannot be read as {path.suffix[1:]}: {error}", do="Repair or convert the file"
        ) from error


def arrow_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an Arrow file, in the format for streams, as `datasets` writes it, or that for files."""
    with pa.OSFile(str(path)) as file:
        if file.read(6) == b"ARROW1":
            reader = pa.ipc.open_file(file)
            yield from map(reader.get_batch, range(reader.num_record_batches))
        else:
            file.seek(0)
            yield from pa.ipc.open_stream(file)


def arrow_schema(path: Path) -> pa.Schema:
    """Return the columns of an Arrow file."""
    with pa.OSFile(str(path)) as file:
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        return (pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)).schema


def _encoding(path: Path) -> str:
    """Return the encoding of a text file: by its mark, else UTF-8 if all of it is, else Windows-1252."""
    with path.open("rb") as file:
        start = file.read(4096)
        marked = next((name for mark, name in _MARKS.items() if start.startswith(mark)), None)
        if marked is not None:
            return marked
        # Western text in UTF-16 without a mark has a zero in every second byte.
        if len(start) >= 16 and min(start[::2].count(0), start[1::2].count(0)) == 0 < start.count(0) * 3 - len(start):
            return "utf-16-le" if start[1] == 0 else "utf-16-be"
        file.seek(0)
        decoder = codecs.getincrementaldecoder("utf-8")()
        position = 0
        try:
            while block := file.read(_BLOCK):
                decoder.decode(block)
                position += len(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            return _other_encoding(path, position + error.start)
    return "utf-8"


def _other_encoding(path: Path, position: int) -> str:
    """Return the encoding of a file that is not UTF-8; raises if it is damaged UTF-8 rather than Windows-1252."""
    recovered = damaged = line = 0
    is_western, has_zeros = True, False
    western = codecs.getincrementaldecoder("cp1252")()
    kept, marked = (codecs.getincrementaldecoder("utf-8")(errors) for errors in ("ignore", "replace"))
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            line += block[: max(0, position)].count(b"\n")
            position -= len(block)
            recovered += sum(character > "\x7f" for character in kept.decode(block))
            damaged += marked.decode(block).count("\ufffd")
            has_zeros |= b"\0" in block
            try:
                western.decode(block)
            except UnicodeDecodeError:
                is_western = False
    damaged += marked.decode(b"", final=True).count("\ufffd")
    if not is_western or recovered > damaged or has_zeros:
        raise DataError(
            f"{path}, line {line + 1}, is not UTF-8 text",
            allowed="Tables are read as UTF-8, UTF-16 or Windows-1252",
            do="Repair the line, or save the file as UTF-8",
        )
    return "cp1252"


def _separator(start: str, columns: Sequence[str]) -> str:
    """Return the separator whose header has the wanted columns, else the one that gives rows of equal length."""
    cut = start if len(start) < _SAMPLE else start[: start.rfind("\n") + 1]
    records = {separator: _records(cut, separator) for separator in _SEPARATORS}
    for separator, rows in records.items():
        if columns and rows and set(columns) <= set(rows[0]):
            return separator

    def regular(separator: str) -> tuple[float, int]:
        rows = records[separator]
        width = len(rows[0]) if rows else 0
        return (sum(len(row) == width for row in rows) / len(rows), width) if width > 1 else (0.0, 0)

    return max(_SEPARATORS, key=regular)


def _records(text: str, separator: str) -> list[list[str]]:
    try:
        return [row for row, _ in zip(csv.reader(io.StringIO(text, newline=""), delimiter=separator), range(100))]  # noqa: B905
    except csv.Error:
        return []


def _csv(path: Path, form: TableFormat, text_columns: Sequence[str]) -> pa.Table:
    # TSV has no quoting: a single " must not swallow the rows up to the next one.
    quoting: dict[str, Any] = {"quote_char": False} if form.suffix == ".tsv" else {"newlines_in_values": True}
    return pa.csv.read_csv(
        str(path),
        pa.csv.ReadOptions(block_size=LONGEST_ROW, encoding="utf-8" if form.encoding == "utf-8-sig" else form.encoding),
        pa.csv.ParseOptions(delimiter=form.separator, **quoting),
        pa.csv.ConvertOptions(column_types=dict.fromkeys(text_columns, pa.string())),
    )


def _json(path: Path, form: TableFormat, _: Sequence[str]) -> pa.Table:
    if form.is_array:
        return _json_array(path, form.encoding)
    options = pa.json.ReadOptions(block_size=LONGEST_ROW)
    if form.encoding in ("utf-8", "utf-8-sig"):
        return pa.json.read_json(str(path), options)
    return pa.json.read_json(io.BytesIO(path.read_text(encoding=form.encoding).encode()), options)


def _json_array(path: Path, encoding: str) -> pa.Table:
    try:
        rows = json.loads(path.read_text(encoding=encoding))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON ({error})", do="Repair or convert the file") from error
    strange = next((number for number, row in enumerate(rows, start=1) if not isinstance(row, dict)), None)
    if strange is not None:
        raise DataError(f"{path}, entry {strange}, is no object", allowed="A JSON array of rows has one object per row")
    # `from_pylist` takes the columns of the first row alone.
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: [row.get(name) for row in rows] for name in names})


_READERS = {
    ".parquet": lambda path, form, text_columns: pa.parquet.read_table(str(path)),
    ".arrow": lambda path, form, text_columns: pa.Table.from_batches(arrow_batches(path), arrow_schema(path)),
    ".csv": _csv,
    ".tsv": _csv,
    ".jsonl": _json,
    ".json": _json,
}
