"""Output files: each chunk is written as a part, and all parts are joined into one file."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.core.errors import RecipeError
from headstart.core.pages import spreadsheet
from headstart.tasks.table_rows import common_type, type_of

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
_ROW_GROUP = 1 << 24
"""Bytes of a row group of a Parquet file."""
_TSV = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
"""TSV has no quoting."""

RowValues = Mapping[str, Any]


class OutputFormat(Protocol):
    """Writes parts and joins them."""

    def write(self, path: Path, rows: Sequence[RowValues]) -> None:
        """Write the rows of a chunk."""
        ...

    def join(self, parts: Sequence[Path], path: Path) -> None:
        """Write one file with the rows of all parts."""
        ...


def require_suffix(path: Path) -> str:
    """Return the suffix of an output file in lower case; raises if it names no format."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise RecipeError(
            f"the output {path} ends in {path.suffix!r}",
            allowed=f"Predictions are written to {', '.join(SUFFIXES)} files",
            do="Choose a name that ends in one of these",
        )
    return suffix


def output_format(suffix: str, kept: pa.Schema, added: Sequence[str], as_vectors: bool) -> OutputFormat:
    """Return the format of a suffix, for the kept columns of the input and the added ones."""
    if suffix == ".jsonl":
        return JsonLines()
    if suffix == ".parquet":
        return Parquet(kept, added, as_vectors)
    return Separated([*kept.names, *added], is_tsv=suffix == ".tsv")


class JsonLines:
    """JSON Lines: a row has the keys that it had in the input, and the added ones."""

    def write(self, path: Path, rows: Sequence[RowValues]) -> None:
        """Write one line per row; a lone surrogate stays the escape that it was."""
        text = "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
        path.write_bytes(text.encode(errors="backslashreplace"))

    def join(self, parts: Sequence[Path], path: Path) -> None:
        """Concatenate the parts."""
        _concatenate(b"", parts, path)


class Separated:
    """CSV, or TSV without quotes; lists and mappings are written as JSON."""

    def __init__(self, names: Sequence[str], is_tsv: bool) -> None:
        """Take the names of the columns."""
        self.names, self.is_tsv = names, is_tsv

    def write(self, path: Path, rows: Sequence[RowValues]) -> None:
        """Write the rows without a header."""
        path.write_bytes(self._text([row.get(name) for name in self.names] for row in rows))

    def join(self, parts: Sequence[Path], path: Path) -> None:
        """Write the header and concatenate the parts."""
        _concatenate(self._text(iter([self.names])), parts, path)

    def _text(self, rows: Iterator[Sequence[Any]]) -> bytes:
        cells = [[_cell(value) for value in row] for row in rows]
        if self.is_tsv:
            text = "".join("\t".join(str(cell).translate(_TSV) for cell in row) + "\n" for row in cells)
        else:
            sheet = io.StringIO()
            csv.writer(sheet, lineterminator="\n").writerows(cells)
            text = sheet.getvalue()
        return text.encode(errors="backslashreplace")


class Parquet:
    """Parquet: input columns keep their types; the types of the added ones are those that fit all parts."""

    def __init__(self, kept: pa.Schema, added: Sequence[str], as_vectors: bool) -> None:
        """Take the schema of the kept columns and the names of the added ones."""
        self.kept, self.added = kept, added
        self.types = {added[0]: pa.list_(pa.float32())} if as_vectors else {}

    def write(self, path: Path, rows: Sequence[RowValues]) -> None:
        """Write the rows as a Parquet file."""
        columns = {field.name: _array([row.get(field.name) for row in rows], field.type) for field in self.kept}
        for name in self.added:
            values = [row.get(name) for row in rows]
            kind = self.types.get(name) or type_of(values)
            columns[name] = _array(values, pa.string() if kind is None else kind)
        pq.write_table(pa.table(columns), path)

    def join(self, parts: Sequence[Path], path: Path) -> None:
        """Write the parts as one file, several to a row group."""
        types: dict[str, pa.DataType | None] = {}
        for part in parts:
            schema = pq.read_schema(part)
            for name in self.added:
                kind = schema.field(name).type
                types[name] = common_type(types[name], kind) if name in types else kind
        filled = {n: pa.string() if k is None or pa.types.is_null(k) else k for n, k in types.items()}
        added = [pa.field(name, filled.get(name, pa.string())) for name in self.added]
        schema = pa.schema([*self.kept, *added])
        with pq.ParquetWriter(path, schema) as writer:
            for table in _grouped(parts, schema):
                writer.write_table(table)


def _grouped(parts: Sequence[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    for part in parts:
        table = pq.read_table(part)
        columns = [_converted(table.column(field.name), field.type) for field in schema]
        waiting.append(pa.table(columns, schema=schema))
        if sum(table.nbytes for table in waiting) >= _ROW_GROUP:
            yield pa.concat_tables(waiting).combine_chunks()
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def _converted(column: pa.ChunkedArray, kind: pa.DataType) -> Any:
    if column.type == kind:
        return column
    if pa.types.is_string(kind):
        return _array(column.to_pylist(), kind)
    return column.cast(kind)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return an array; in a column of texts, other values are written as JSON."""
    if pa.types.is_string(kind):
        values = [value if value is None or isinstance(value, str) else _json(value) for value in values]
        values = [None if value is None else value.encode(errors="backslashreplace").decode() for value in values]
    return pa.array(values, kind)


def _cell(value: Any) -> Any:
    return spreadsheet.cell(_json(value) if isinstance(value, list | dict | tuple) else value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _concatenate(start: bytes, parts: Sequence[Path], path: Path) -> None:
    with path.open("wb") as whole:
        whole.write(start)
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, whole)
