"""Parquet and Arrow files by batches of columns as bytes, row group by row group.

A row group that cannot be read is told as lost, with its number of rows, and the next one is read all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as types

from headstart.core.errors import DataError, first_line
from headstart.core.registry import suggest
from headstart.corpus.read.streams import opened

BATCH_BYTES = 8 << 20
_BATCH_ROWS = 256


@dataclass(frozen=True, slots=True)
class LostRows:
    """Rows that a file promises and does not give."""

    rows: int
    reason: str
    error: DataError
    is_whole_file: bool = False
    """Nothing of the file can be used; where it cannot even be opened, that counts as one row."""


def groups_of(path: str) -> int:
    """Return the number of row groups; 1 for a file that cannot be opened, which reading then tells."""
    try:
        with opened(path) as raw, _parquet(raw) as file:
            return int(file.metadata.num_row_groups)
    except (pa.ArrowException, OSError):
        return 1


def batches(path: str, columns: Sequence[str], groups: Iterable[int]) -> Iterator[pa.RecordBatch | LostRows]:
    """Yield batches of some columns of some row groups, texts as bytes; the first column must be there and hold text.

    A column beside it that is not there, or holds what cannot be printed (a list), is null.
    """
    try:
        with opened(path) as raw, _parquet(raw) as file:
            wrong = _wrong(PurePosixPath(path).name, columns[0], file.schema_arrow)
            if wrong is not None:
                rows = sum(int(file.metadata.row_group(group).num_rows) for group in groups)
                yield LostRows(max(1, rows), str(DataError(wrong.found, allowed=wrong.allowed)), wrong, True)
                return
            for group in groups:
                yield from _group(path, file, columns, group)
    except (pa.ArrowException, OSError) as error:
        reason = f"cannot be read as parquet ({first_line(error)})"
        yield LostRows(1, reason, DataError(f"{path} {reason}", do="Restore the file or take it out"), True)


def no_column(path: str, column: str, columns: Sequence[str]) -> DataError:
    """Return the error for a file without the column that the recipe names."""
    return DataError(
        f"{PurePosixPath(path).name} has no column {column!r}{suggest(column, columns)}",
        allowed=f"It has: {', '.join(columns) or 'no columns at all'}",
        do="Set corpus.text",
    )


def _group(path: str, file: pq.ParquetFile, columns: Sequence[str], group: int) -> Iterator[pa.RecordBatch | LostRows]:
    there = [name for name in columns if name in file.schema_arrow.names]
    promised, given = int(file.metadata.row_group(group).num_rows), 0
    try:
        size = _rows_at_a_time(file.metadata.row_group(group), columns[0])
        for batch in file.iter_batches(batch_size=size, row_groups=[group], columns=there):
            first, *beside = (batch.column(name) if name in there else pa.nulls(batch.num_rows) for name in columns)
            arrays = [_bytes(first), *(_bytes_or_nulls(column) for column in beside)]
            given += batch.num_rows
            yield from _cut(pa.record_batch(arrays, names=list(columns)))
        reason = "fewer rows than promised"
    except (pa.ArrowException, OSError) as error:
        reason = first_line(error)
    if given != promised:
        raised = DataError(
            f"{path} promises {promised:,} rows in row group {group} and gave {given:,} ({reason})",
            do="Restore the file or take it out",
        )
        yield LostRows(promised - given, f"row group {group} cannot be read ({reason})", raised)


def bytes_of(group: Any, column: str) -> int:
    """Return the unpacked bytes of one column of a row group, as the file's metadata tells them."""
    columns = (group.column(place) for place in range(group.num_columns))
    return sum(int(c.total_uncompressed_size) for c in columns if c.path_in_schema == column)


def _rows_at_a_time(group: Any, column: str) -> int:
    """Return how many rows make a batch by what the file says of their size; 256 of half a megabyte would be 128 MB."""
    return max(1, min(_BATCH_ROWS, BATCH_BYTES * int(group.num_rows) // max(1, bytes_of(group, column))))


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch whose rows are larger than the file let expect."""
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


@contextmanager
def _parquet(raw: Any) -> Iterator[pq.ParquetFile]:
    with pq.ParquetFile(raw) as file:
        yield file


def _bytes(values: pa.Array) -> pa.Array:
    """Return texts as bytes, since nobody has checked that they are UTF-8; anything else as what it prints."""
    if types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if not (_is_text(values.type) or types.is_null(values.type) or types.is_binary(values.type)):
        values = values.cast(pa.string())
    return values.cast(pa.large_binary())


def _bytes_or_nulls(values: pa.Array) -> pa.Array:
    try:
        return _bytes(values)
    except pa.ArrowException:
        return pa.nulls(len(values), pa.large_binary())


def _wrong(name: str, column: str, schema: pa.Schema) -> DataError | None:
    if column not in schema.names:
        return no_column(name, column, schema.names)
    kind = schema.field(column).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if _is_text(kind) or types.is_null(kind):
        return None
    return DataError(f"column {column!r} of {name} holds {kind}", allowed="Text is needed", do="Set corpus.text")


def _is_text(kind: pa.DataType) -> bool:
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
