"""Labeled rows from Parquet, CSV, TSV or JSON Lines files.

pyarrow reads them directly: the loader of `datasets` would first copy every file to a cache in the home folder, and
its errors do not name the faulty row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from headstart.core import registry
from headstart.core.data import ColumnKind, Examples, InputColumn
from headstart.core.errors import DataError
from headstart.core.randomness import permute


def _is_label(value: Any) -> bool:
    return isinstance(value, str | bool | int | float) and value != "" and value == value


def _is_list(value: Any, of: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(of(item) for item in value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


TEXT = ColumnKind("a text", _is_text, is_text=True)
TEXTS = ColumnKind("a list of texts, one or more", lambda value: _is_list(value, _is_text))
LABEL = ColumnKind("a label: a word or a number", _is_label)
LABELS = ColumnKind("a list of labels, each a word or a number", lambda value: _is_list(value, _is_label))
NUMBER = ColumnKind("a number", lambda value: _is_label(value) and not isinstance(value, str | bool))

_LONGEST_ROW = 1 << 26
"""In bytes: pyarrow reads a row only if it fits in one block."""


def _csv(path: str, text: Sequence[str], **form: Any) -> pa.Table:
    as_text = pa.csv.ConvertOptions(column_types=dict.fromkeys(text, pa.string()))
    blocks = pa.csv.ReadOptions(block_size=_LONGEST_ROW)
    return pa.csv.read_csv(path, blocks, pa.csv.ParseOptions(**form), as_text)


def _json(path: str, _: Sequence[str]) -> pa.Table:
    return pa.json.read_json(path, pa.json.ReadOptions(block_size=_LONGEST_ROW))


_READERS: dict[str, Callable[[str, Sequence[str]], pa.Table]] = {
    ".parquet": lambda path, _: pa.parquet.read_table(path),
    ".csv": lambda path, text: _csv(path, text, newlines_in_values=True),
    # TSV has no quoting: a single " must not swallow the rows up to the next one.
    ".tsv": lambda path, text: _csv(path, text, delimiter="\t", quote_char=False),
    ".jsonl": _json,
    ".json": _json,
}


def read(path: str | Path, columns: Sequence[InputColumn]) -> Examples:
    """Read the columns that a task needs; every row must have a value of the column's kind."""
    path = Path(path)
    if not path.is_file():
        siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(
            f"there is no file {path}{registry.suggest(path.name, siblings)}",
            do="Check the path; relative paths start at the working directory",
        )
    if path.suffix.lower() not in _READERS:
        raise DataError(
            f"{path} ends in {path.suffix!r}",
            allowed=f"Labeled data is read from {', '.join(_READERS)} files",
            do="Rename or convert the file",
        )
    try:
        texts = [column.name for column in columns if column.kind.is_text]
        table = _READERS[path.suffix.lower()](str(path), texts)
        values = {column.name: _values(path, table, column, columns) for column in columns}
    # pyarrow decodes names and texts lazily, so decoding errors may come after the read.
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read as {path.suffix[1:]}: {error}", do="Repair or convert the file"
        ) from error
    if not table.num_rows:
        raise DataError(f"{path} has no rows", do="Use a file with at least one labeled row")
    gold = next((column.name for column in columns if column.is_gold), None)
    labels = [None] * table.num_rows if gold is None else values[gold]
    return Examples({c.name: values[c.name] for c in columns if not c.is_gold}, labels, str(path))


def sample_rows(examples: Examples, count: int | None, seed: int, purpose: str) -> Examples:
    """Return `count` random rows, a pure function of the seed and the purpose; all rows if `count` is None or larger.

    For the same seed, a larger count contains the rows of a smaller one.
    """
    if count is None or count >= len(examples):
        return examples
    return examples.take(permute(np.arange(count), len(examples), seed, 0, purpose).tolist())


def fixed_subset(examples: Examples, count: int | None) -> Examples:
    """Return `count` random rows of a test set in their order, the same for every seed; None returns all rows."""
    if count is None or count >= len(examples):
        return examples
    return examples.take(sorted(permute(np.arange(count), len(examples), 0, 0, "test").tolist()))


def split_off(examples: Examples, count: int) -> tuple[Examples, Examples]:
    """Split off `count` random rows for validation, the same for every seed; returns (rest, validation)."""
    if not 0 < count < len(examples):
        raise DataError(
            f"data.validation is {count}, but {examples.source} has {len(examples)} rows",
            allowed="At least one row must be split off, and at least one must remain for training",
            do="Change data.validation, or set it to a file",
        )
    order = permute(np.arange(len(examples)), len(examples), 0, 0, "validation").tolist()
    return examples.take(sorted(order[count:])), examples.take(sorted(order[:count]))


def _values(path: Path, table: pa.Table, column: InputColumn, columns: Sequence[InputColumn]) -> list[Any]:
    """Return a column's values; raises with the row number if a value is missing or of another kind."""
    if column.name not in table.column_names:
        settings = dict.fromkeys(column.setting for column in columns)
        raise DataError(
            f"{path} has no column {column.name!r}{registry.suggest(column.name, table.column_names)}",
            allowed=f"Its columns: {', '.join(table.column_names)}",
            do=f"Set {' and '.join(settings)}",
        )
    if table.column_names.count(column.name) > 1:
        raise DataError(f"{path} has several columns {column.name!r}", do="Rename all but one")
    values: list[Any] = table.column(column.name).to_pylist()
    for row, value in enumerate(values):
        # An empty or NaN label counts as missing too.
        is_missing = value is None or (not column.kind.is_text and (value == "" or value != value))
        if is_missing or not column.kind.fits(value):
            problem = "is empty" if is_missing else f"is a {type(value).__name__}: {shortened(value)}"
            raise DataError(
                f"{path}, row {row + 1}, column {column.name!r} {problem}",
                allowed=f"Every row needs {column.kind.needs}",
                do="Fill in or remove that row",
            )
    return values


def shortened(value: Any) -> str:
    """Return the repr of a value, cut to 80 characters for error messages."""
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
