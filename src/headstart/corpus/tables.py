"""Parquet and Arrow files by batches of columns as bytes, row group by row group.

A row group that cannot be read is told as lost, with its number of rows, and the next one is read all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as types

from headstart.core.errors import DataError, first_line
from headstart.core.registry import suggest
from headstart.corpus.streams import opened

_BATCH_ROWS = 256


@dataclass(frozen=True, slots=True)
class Lost:
    """Rows that a file promises and does not give."""

    rows: int
    reason: str
    error: DataError


def groups_of(path: str) -> int:
    """Return the number of row groups; 1 for a file that cannot be opened, which reading then tells."""
    try:
        with opened(path) as raw, _parquet(raw) as file:
            return int(file.metadata.num_row_groups)
    except (pa.ArrowException, OSError):
        return 1


def batches(path: str, columns: Sequence[str], groups: Iterable[int]) -> Iterator[pa.RecordBatch | Lost | DataError]:
    """Yield batches of some columns of some row groups, texts as bytes; the first column must be there.

    A column that is not there is null. An error in place of a batch says that nothing of the file can be used.
    """
    name = PurePosixPath(path).name
    try:
        with opened(path) as raw, _parquet(raw) as file:
            wrong = _wrong(name, columns[0], file.schema_arrow)
            if wrong is not None:
                yield wrong
                return
            for group in groups:
                yield from _group(path, file, columns, group)
    except (pa.ArrowException, OSError) as error:
        yield DataError(f"{path} cannot be read as parquet ({first_line(error)})", do="Restore the file or take it out")


def no_column(path: str, column: str, columns: Sequence[str]) -> DataError:
    """Return the error for a file without the column that the recipe names."""
    return DataError(
        f"{PurePosixPath(path).name} has no column {column!r}{suggest(column, columns)}",
        allowed=f"It has: {', '.join(columns) or 'no columns at all'}",
        do="Set corpus.text",
    )


def _group(path: str, file: pq.ParquetFile, columns: Sequence[str], group: int) -> Iterator[pa.RecordBatch | Lost]:
    there = [name for name in columns if name in file.schema_arrow.names]
    promised, given = int(file.metadata.row_group(group).num_rows), 0
    try:
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group], columns=there):
            given += batch.num_rows
            yield pa.record_batch(
                [_bytes(batch.column(name)) if name in there else pa.nulls(batch.num_rows) for name in columns],
                names=list(columns),
            )
        reason = "fewer rows than promised"
    except (pa.ArrowException, OSError) as error:
        reason = first_line(error)
    if given != promised:
        raised = DataError(
            f"{path} promises {promised:,} rows in row group {group} and gave {given:,} ({reason})",
            do="Restore the file or take it out",
        )
        yield Lost(promised - given, f"row group {group} cannot be read ({reason})", raised)


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
