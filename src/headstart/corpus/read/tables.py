"""Parquet files read in batches of columns, as bytes, row group by row group.

A row group that cannot be read is reported as `LostRows` with its number of rows; reading continues with the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as types

from headstart.core.errors import DataError, first_line
from headstart.core.registry import suggest
from headstart.corpus.read.streams import opened
from headstart.corpus.read.urls import without_options

BATCH_BYTES = 8 << 20
_BATCH_ROWS = 256
UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What pyarrow raises for a damaged file; names are decoded when they are first used."""
_ADVICE = "Restore the file or remove it from the recipe"


@dataclass(frozen=True, slots=True)
class LostRows:
    """Rows that a file announces in its metadata and that cannot be read."""

    rows: int
    reason: str
    error: DataError
    is_whole_file: bool = False
    """Nothing of the file can be used. A file that cannot even be opened counts as one row."""


def groups_of(path: str) -> int:
    """Return the number of row groups of a file; 1 if it cannot be opened, which is reported when it is read."""
    try:
        with opened(path) as raw, pq.ParquetFile(raw) as file:
            return int(file.metadata.num_row_groups)
    except UNREADABLE:
        return 1


def batches(path: str, columns: Sequence[str], groups: Iterable[int]) -> Iterator[pa.RecordBatch | LostRows]:
    """Yield batches of the given columns and row groups, with text as bytes.

    The first column must exist and contain text. Any other column is null if it is missing or cannot be converted to
    text (a list).
    """
    try:
        with opened(path) as raw, pq.ParquetFile(raw) as file:
            error = _column_error(path, columns[0], file.schema_arrow)
            if error is not None:
                rows = sum(int(file.metadata.row_group(group).num_rows) for group in groups)
                yield LostRows(max(1, rows), str(DataError(error.found, allowed=error.allowed)), error, True)
                return
            for group in groups:
                yield from _group(path, file, columns, group)
    except UNREADABLE as error:
        reason = f"cannot be read as parquet ({first_line(error)})"
        yield LostRows(1, reason, DataError(f"{without_options(path)} {reason}", do=_ADVICE), True)


def no_column(path: str, column: str, columns: Sequence[str]) -> DataError:
    """Return the error for a file without the column that the recipe names."""
    return DataError(
        f"{_name(path)} has no column {column!r}{suggest(column, columns)}",
        allowed=f"It has: {', '.join(columns) or 'no columns at all'}",
        do="Set corpus.text",
    )


def _group(path: str, file: pq.ParquetFile, columns: Sequence[str], group: int) -> Iterator[pa.RecordBatch | LostRows]:
    present = [name for name in columns if name in file.schema_arrow.names]
    expected, rows_read = int(file.metadata.row_group(group).num_rows), 0
    try:
        size = _batch_rows(file, group, columns[0])
        for batch in file.iter_batches(batch_size=size, row_groups=[group], columns=present):
            text, *extra = (batch.column(name) if name in present else pa.nulls(batch.num_rows) for name in columns)
            arrays = [_as_bytes(text), *(_as_bytes_or_nulls(column) for column in extra)]
            rows_read += batch.num_rows
            yield from _cut(pa.record_batch(arrays, names=list(columns)))
        reason = "fewer rows than its metadata states"
    except UNREADABLE as error:
        reason = first_line(error)
    if rows_read != expected:
        lost = DataError(
            f"row group {group} of {without_options(path)} should have {expected:,} rows, "
            f"but {rows_read:,} could be read ({reason})",
            do=_ADVICE,
        )
        yield LostRows(expected - rows_read, f"row group {group} cannot be read ({reason})", lost)


def bytes_of(file: pq.ParquetFile, group: int, column: str) -> int:
    """Return the uncompressed bytes of one column of a row group, from the file's metadata."""
    # Damaged metadata of a column ends the process in pyarrow 25 when it is looked up, but raises when a row is read.
    next(file.iter_batches(batch_size=1, row_groups=[group], columns=[column]), None)
    schema = file.metadata.schema
    positions = [i for i in range(file.metadata.num_columns) if schema.column(i).path == column]
    return sum(int(file.metadata.row_group(group).column(i).total_uncompressed_size) for i in positions)


def _batch_rows(file: pq.ParquetFile, group: int, column: str) -> int:
    """Return the number of rows in a batch, given their size in the metadata: 256 of half a megabyte are 128 MB."""
    rows = int(file.metadata.row_group(group).num_rows)
    return max(1, min(_BATCH_ROWS, BATCH_BYTES * rows // max(1, bytes_of(file, group, column))))


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch whose rows are larger than the metadata suggested."""
    if batch.nbytes <= BATCH_BYTES:
        yield batch
        return
    lengths = sum(pc.fill_null(pc.binary_length(column), 0).to_numpy() for column in batch.columns)
    ends, start = np.cumsum(lengths), 0
    while start < batch.num_rows:
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + BATCH_BYTES, "right")))
        yield batch.slice(start, stop - start)
        start = stop


def _as_bytes(values: pa.Array) -> pa.Array:
    """Return text as bytes, because it is not known to be valid UTF-8; other values are converted to text first."""
    if types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if not (_is_text(values.type) or types.is_null(values.type) or types.is_binary(values.type)):
        values = values.cast(pa.string())
    return values.cast(pa.large_binary())


def _as_bytes_or_nulls(values: pa.Array) -> pa.Array:
    try:
        return _as_bytes(values)
    except pa.ArrowException:
        return pa.nulls(len(values), pa.large_binary())


def _name(path: str) -> str:
    return PurePosixPath(without_options(path)).name


def _column_error(path: str, column: str, schema: pa.Schema) -> DataError | None:
    if column not in schema.names:
        return no_column(path, column, schema.names)
    kind = schema.field(column).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if _is_text(kind) or types.is_null(kind):
        return None
    return DataError(f"column {column!r} of {_name(path)} holds {kind}", allowed="Text is needed", do="Set corpus.text")


def _is_text(kind: pa.DataType) -> bool:
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
