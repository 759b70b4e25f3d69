"""The rows of tables one after another, in memory that does not grow with the files.

A row that cannot be read is a row with a problem and does not end the reading. A JSON array is the exception: it is
read as a whole. CSV cells are texts as they are in the file; nothing is guessed about their type.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.core.errors import DataError
from headstart.tasks.class_labels import class_names, named_schema, with_class_names
from headstart.tasks.table_files import TableFiles
from headstart.tasks.tables import LONGEST_ROW, TableFormat, arrow_batches, arrow_schema, explained

_BLOCK = 4096
"""Rows of JSON whose types are determined together."""


@dataclass(frozen=True, slots=True)
class Row:
    """The values of a row by column; `problem` says why it could not be read and is empty otherwise."""

    values: dict[str, Any]
    problem: str = ""


@dataclass(frozen=True)
class Survey:
    """What one pass over the files finds: the number of rows, and the columns with their types."""

    rows: int
    schema: pa.Schema


def read_rows(located: TableFiles, forms: Sequence[TableFormat]) -> Iterator[Row]:
    """Yield the rows of one file after another, each in its format."""
    for path, form in zip(located.files, forms, strict=True):
        yield from _read_file(path, form, located.class_names)


def _read_file(path: Path, form: TableFormat, classes: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    with explained(path):
        if form.suffix in (".parquet", ".arrow"):
            yield from _batches(path, form, classes)
        elif form.suffix in (".csv", ".tsv"):
            yield from _csv(path, form)
        else:
            yield from _json_array(path, form) if form.is_array else _json_lines(path, form)


def survey(located: TableFiles, forms: Sequence[TableFormat]) -> Survey:
    """Count the rows of all files and return their columns; a column of values of several types counts as text."""
    surveys = [survey_file(path, form, located) for path, form in zip(located.files, forms, strict=True)]
    if len(surveys) == 1:
        return surveys[0]
    kinds: dict[str, pa.DataType | None] = {}
    for field in (field for found in surveys for field in found.schema):
        kinds[field.name] = common_type(kinds[field.name], field.type) if field.name in kinds else field.type
    schema = pa.schema([(name, pa.string() if kind is None else kind) for name, kind in kinds.items()])
    return Survey(sum(found.rows for found in surveys), schema)


def survey_file(path: Path, form: TableFormat, located: TableFiles) -> Survey:
    """Count the rows of one of several files and return its columns."""
    with explained(path):
        if form.suffix == ".parquet":
            file = pq.ParquetFile(str(path))
            return Survey(file.metadata.num_rows, _named(file.schema_arrow, located.class_names))
        if form.suffix == ".arrow":
            rows = sum(batch.num_rows for batch in arrow_batches(path))
            return Survey(rows, _named(arrow_schema(path), located.class_names))
        if form.suffix in (".csv", ".tsv"):
            schema = pa.schema([(name, pa.string()) for name in _header(path, form)])
            return Survey(sum(1 for _ in _csv(path, form)), schema)
        return _survey_json(path, form)


def _named(schema: pa.Schema, classes: Mapping[str, Sequence[str]]) -> pa.Schema:
    return named_schema(schema, {**classes, **class_names(schema)})


def _batches(path: Path, form: TableFormat, classes: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """Yield rows of Parquet and Arrow files, with class names where `datasets` has them."""
    if form.suffix == ".parquet":
        file = pq.ParquetFile(str(path), pre_buffer=False, buffer_size=1 << 20)
        schema, batches = file.schema_arrow, file.iter_batches(batch_size=1024)
    else:
        schema, batches = arrow_schema(path), arrow_batches(path)
    require_distinct(path, schema.names)
    known = {**classes, **class_names(schema)}
    for batch in batches:
        yield from map(Row, with_class_names(pa.Table.from_batches([batch]), known).to_pylist())


def _header(path: Path, form: TableFormat) -> list[str]:
    with path.open(encoding=form.encoding, newline="") as file:
        header = next((cells for cells in _reader(file, form) if cells), None)
    if header is None:
        raise DataError(f"{path} is empty", allowed="The first row of a table has the names of its columns")
    return header


def _csv(path: Path, form: TableFormat) -> Iterator[Row]:
    """Yield rows by Python's reader, which, unlike pyarrow's, also returns rows with too few or too many cells."""
    header = _header(path, form)
    require_distinct(path, header)
    with path.open(encoding=form.encoding, newline="") as file:
        # Like pyarrow's reader, empty lines are skipped.
        for cells in islice((cells for cells in _reader(file, form) if cells), 1, None):
            values = dict(zip(header, cells, strict=False))
            if len(cells) == len(header):
                yield Row(values)
            else:
                yield Row(values, f"the row has {len(cells)} cells, but the header has {len(header)}")


def _reader(file: Any, form: TableFormat) -> Iterator[list[str]]:
    csv.field_size_limit(max(LONGEST_ROW, csv.field_size_limit()))
    # TSV has no quoting: a single " must not swallow the rows up to the next one.
    if form.suffix == ".tsv":
        return csv.reader(file, delimiter=form.separator, quoting=csv.QUOTE_NONE)
    return csv.reader(file, delimiter=form.separator)


def _json_lines(path: Path, form: TableFormat) -> Iterator[Row]:
    with path.open(encoding=form.encoding, newline="\n") as file:
        for line in file:
            if line.strip():
                yield _json_row(line)


def _json_row(line: str) -> Row:
    try:
        return _object(json.loads(line))
    except (ValueError, RecursionError) as error:
        return Row({}, f"the line is not JSON ({error})")


def _json_array(path: Path, form: TableFormat) -> Iterator[Row]:
    try:
        entries = json.loads(path.read_text(encoding=form.encoding))
    except UnicodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON ({error})", do="Repair or convert the file") from error
    yield from map(_object, entries)


def _object(value: Any) -> Row:
    return Row(value) if isinstance(value, dict) else Row({}, "the row is not a JSON object")


def _survey_json(path: Path, form: TableFormat) -> Survey:
    rows = _json_array(path, form) if form.is_array else _json_lines(path, form)
    types: dict[str, pa.DataType | None] = {}
    count = 0
    while block := [row.values for row in islice(rows, _BLOCK)]:
        count += len(block)
        for name in dict.fromkeys(name for values in block for name in values):
            found = type_of([values.get(name) for values in block])
            types[name] = common_type(types[name], found) if name in types else found
    known = {name: kind for name, kind in types.items() if kind is not None and not pa.types.is_null(kind)}
    return Survey(count, pa.schema([(name, known.get(name, pa.string())) for name in types]))


def type_of(values: Sequence[Any]) -> pa.DataType | None:
    """Return the type of a column's values; None if they have no common one."""
    try:
        return pa.array(values).type
    except (pa.ArrowException, OverflowError, UnicodeError):
        return None


def common_type(first: pa.DataType | None, second: pa.DataType | None) -> pa.DataType | None:
    """Return a type that has the values of both; None if there is none."""
    if first is None or second is None:
        return None
    try:
        schemas = [pa.schema([("x", kind)]) for kind in (first, second)]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return None


def require_distinct(path: Path | str, names: Sequence[str]) -> None:
    """Raise if two columns of a table have one name."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path} has several columns {twice!r}", do="Rename all but one")
