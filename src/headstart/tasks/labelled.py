"""Labeled rows from Parquet, Arrow, CSV, TSV or JSON files, and their splits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headstart.core import registry
from headstart.core.data import ColumnKind, Examples, InputColumn
from headstart.core.errors import DataError, shorten
from headstart.core.log import logger
from headstart.core.randomness import permute
from headstart.tasks import tables
from headstart.tasks.table_files import TableFiles, TableSource, locate
from headstart.tasks.table_rows import survey_file


def is_label(value: Any) -> bool:
    """Return whether a value can be a label: a text that is not empty, or a number."""
    return isinstance(value, str | bool | int | float) and value != "" and value == value


def _is_list(value: Any, of: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(of(item) for item in value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


TEXT = ColumnKind("a text", _is_text, is_text=True)
TEXTS = ColumnKind("a list of texts, one or more", lambda value: _is_list(value, _is_text))
LABEL = ColumnKind("a label: a word or a number", is_label)
LABELS = ColumnKind("a list of labels, each a word or a number", lambda value: _is_list(value, is_label))
NUMBER = ColumnKind(
    "a finite number",
    lambda value: is_label(value) and not isinstance(value, str | bool) and math.isfinite(value),
)


def read(source: TableSource, columns: Sequence[InputColumn], skip_incomplete: bool = False) -> Examples:
    """Read the columns that a task needs; every row must have a value of the column's kind.

    Args:
        source: a file, several, a folder or a split of a data set (`table_files.locate`).
        columns: the columns that the task reads.
        skip_incomplete: leave out rows in which a value is missing or of another kind, instead of raising.
    """
    located = locate(source)
    texts = [column.name for column in columns if column.kind.is_text]
    table, recognized = tables.read(located, texts, list(dict.fromkeys(column.name for column in columns)))
    if not recognized.is_expected:
        logger.info("%s is read as %s", located, recognized)
    if not table.num_rows:
        raise DataError(f"{located} has no rows", do="Use a file with at least one labeled row")
    try:
        values = {column.name: _values(located, table, column, columns) for column in columns}
    # pyarrow decodes names and texts lazily, so decoding errors may come after the read.
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(
            f"{located} cannot be read as {recognized.suffix[1:]}: {error}", do="Repair or convert the file"
        ) from error
    faulty = _faulty_rows(values, columns)
    if faulty and not skip_incomplete:
        raise _incomplete(located, values, faulty)
    gold = next((column for column in columns if column.is_gold), None)
    labels = [None] * table.num_rows if gold is None else _converted(values[gold.name], gold, faulty)
    inputs = {c.name: _converted(values[c.name], c, faulty) for c in columns if not c.is_gold}
    examples = Examples(inputs, labels, str(located))
    if not faulty:
        return examples
    logger.warning("%s: %s of %s rows left out, because a value is missing or of another kind", located,
                f"{len(faulty):,}", f"{len(examples):,}")  # fmt: skip
    if len(faulty) == len(examples):
        raise _incomplete(located, values, faulty)
    return examples.take([row for row in range(len(examples)) if row not in faulty])


def _converted(values: list[Any], column: InputColumn, faulty: Container[int]) -> list[Any]:
    """Convert the values of a column; a faulty one stays, because its row is left out."""
    convert = column.kind.convert
    if convert is None:
        return values
    return [value if row in faulty else convert(value) for row, value in enumerate(values)]


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


def split_off(examples: Examples, amount: int | float, split: str) -> tuple[Examples, Examples]:
    """Split off random rows, the same for every seed; returns (rest, the rows that were split off).

    Args:
        examples: all rows.
        amount: the number of rows, or their share if it is below one.
        split: what the rows are for, "validation" or "test"; each name draws other rows.
    """
    count = round(amount * len(examples)) if isinstance(amount, float) else amount
    if not 0 < count < len(examples):
        raise DataError(
            f"data.{split} is {amount}, but {examples.source} has {len(examples)} rows",
            allowed="At least one row must be split off, and at least one must remain for training",
            do=f"Change data.{split}, or set it to a file",
        )
    order = permute(np.arange(len(examples)), len(examples), 0, 0, split).tolist()
    return examples.take(sorted(order[count:])), examples.take(sorted(order[:count]))


def similar_labels(labels: Iterable[Any]) -> list[str]:
    """Return the groups of different labels that differ only by case or spaces, each as text."""
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault(str(label).strip().casefold(), []).append(repr(label))
    return [" and ".join(group) for group in groups.values() if len(group) > 1]


def doubtful_labels(train: Examples) -> list[str]:
    """Return sentences about labels that are probably mistakes: they differ by case or spaces, or occur only once."""
    counts = Counter(label for label in train.labels if isinstance(label, str | int | bool))
    alike = similar_labels(counts)
    once = [repr(label) for label, count in counts.items() if count == 1]
    sentences = []
    if alike:
        sentences.append(f"{train.source} has labels that differ only by case or spaces: {'; '.join(alike[:5])}")
    # In a small sample every label may be rare.
    if once and len(train) >= 20 * len(counts):
        sentences.append(f"{train.source} has labels with a single row: {', '.join(once[:10])}")
    return sentences


def _values(located: TableFiles, table: pa.Table, column: InputColumn, columns: Sequence[InputColumn]) -> list[Any]:
    """Return a column's values; raises with the row number if a value is missing or of another kind."""
    if column.name not in table.column_names:
        settings = dict.fromkeys(column.setting for column in columns)
        raise DataError(
            f"{located} has no column {column.name!r}{registry.suggest(column.name, table.column_names)}",
            allowed=f"Its columns: {', '.join(table.column_names)}",
            do=f"Set {' and '.join(settings)}",
        )
    if table.column_names.count(column.name) > 1:
        raise DataError(f"{located} has several columns {column.name!r}", do="Rename all but one")
    values: list[Any] = table.column(column.name).to_pylist()
    return values


def _faulty_rows(values: Mapping[str, list[Any]], columns: Sequence[InputColumn]) -> dict[int, InputColumn]:
    """Return the rows in which a value is missing or of another kind, each with the first such column."""
    faulty: dict[int, InputColumn] = {}
    for column in columns:
        for row, value in enumerate(values[column.name]):
            if _is_missing(value, column) or not column.kind.fits(value):
                faulty.setdefault(row, column)
    return dict(sorted(faulty.items()))


def _is_missing(value: Any, column: InputColumn) -> bool:
    """True for an absent value; an empty or NaN label counts as missing too."""
    return value is None or (not column.kind.is_text and (value == "" or value != value))


def _row_name(located: TableFiles, row: int) -> str:
    """Return the file and the number of a row, counted from 1."""
    for file in located.files[:-1]:
        rows = survey_file(file, tables.recognize(file), located).rows
        if row < rows:
            return f"{file}, row {row + 1}"
        row -= rows
    return f"{located if len(located.files) == 1 else located.files[-1]}, row {row + 1}"


def _incomplete(located: TableFiles, values: Mapping[str, list[Any]], faulty: Mapping[int, InputColumn]) -> DataError:
    row, column = next(iter(faulty.items()))
    value = values[column.name][row]
    problem = "is empty" if _is_missing(value, column) else f"is a {type(value).__name__}: {shortened(value)}"
    more = [str(other + 1) for other in list(faulty)[1:11]]
    others = f"; {len(faulty) - 1:,} other rows are incomplete too: {', '.join(more)}" if more else ""
    others += ", …" if len(faulty) > 11 else ""
    several = (
        "For several labels per row, set task.kind to multi_label. "
        if column.kind is LABEL and isinstance(value, list)
        else ""
    )
    return DataError(
        f"{_row_name(located, row)}, column {column.name!r} {problem}{others}",
        allowed=f"Every row needs {column.kind.needs}",
        do=f"{several}Fill in or remove these rows, or set data.skip_incomplete to true, which leaves them out",
    )


def shortened(value: Any) -> str:
    """Return the repr of a value, cut to 80 characters for error messages."""
    return shorten(repr(value), 80)
