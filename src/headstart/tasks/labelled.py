"""Labelled rows from Parquet, CSV or JSON lines, by column name.

pyarrow reads them directly: the loader of `datasets` would first copy every file into a cache in the home
folder, and its errors do not name the row at fault.
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
from headstart.core.contracts import Examples
from headstart.core.errors import DataError
from headstart.core.randomness import permute

_LONGEST_ROW = 1 << 26
"""In bytes: pyarrow reads a row only if it fits into one block."""


def _csv(path: str, text: Sequence[str], **form: Any) -> pa.Table:
    as_text = pa.csv.ConvertOptions(column_types=dict.fromkeys(text, pa.string()))
    blocks = pa.csv.ReadOptions(block_size=_LONGEST_ROW)
    return pa.csv.read_csv(path, blocks, pa.csv.ParseOptions(**form), as_text)


def _json(path: str, _: Sequence[str]) -> pa.Table:
    return pa.json.read_json(path, pa.json.ReadOptions(block_size=_LONGEST_ROW))


_READERS: dict[str, Callable[[str, Sequence[str]], pa.Table]] = {
    ".parquet": lambda path, _: pa.parquet.read_table(path),
    ".csv": lambda path, text: _csv(path, text, newlines_in_values=True),
    # Tab-separated values know no quotes: a lone " must not swallow the rows up to the next one.
    ".tsv": lambda path, text: _csv(path, text, delimiter="\t", quote_char=False),
    ".jsonl": _json,
    ".json": _json,
}


def read(path: str | Path, text: Sequence[str], label: str) -> Examples:
    """Read the named columns; every text must be a string and every label present."""
    path = Path(path)
    if not path.is_file():
        siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(
            f"there is no file {path}{registry.suggest(path.name, siblings)}",
            do="Check the path; relative ones start at the working directory",
        )
    if path.suffix.lower() not in _READERS:
        raise DataError(
            f"{path} ends in {path.suffix!r}",
            allowed=f"Labelled data is read from {', '.join(_READERS)}",
            do="Rename or convert the file",
        )
    try:
        table = _READERS[path.suffix.lower()](str(path), text)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} cannot be read as {path.suffix[1:]}: {error}", do="Mend or convert the file"
        ) from error
    for column in (*text, label):
        if column not in table.column_names:
            raise DataError(
                f"{path} has no column {column!r}{registry.suggest(column, table.column_names)}",
                allowed=f"Its columns: {', '.join(table.column_names)}",
                do="Set task.text and task.label",
            )
        if table.column_names.count(column) > 1:
            raise DataError(f"{path} has several columns {column!r}", do="Rename all but one")
    columns = {name: table.column(name).to_pylist() for name in text}
    labels = table.column(label).to_pylist()
    for name, values in columns.items():
        _require(path, name, values, (str,))
    _require(path, label, labels, (str, bool, int, float))
    if not labels:
        raise DataError(f"{path} has no rows", do="Give a file with at least one labelled row")
    return Examples(columns, labels, str(path))


def choose(examples: Examples, count: int | None, seed: int, purpose: str) -> Examples:
    """Take `count` rows at random, as a pure function of the seed; None or too large a count takes them all."""
    if count is None or count >= len(examples):
        return examples
    return examples.take(permute(np.arange(count), len(examples), seed, 0, purpose).tolist())


def split_off(examples: Examples, count: int) -> tuple[Examples, Examples]:
    """Split `count` rows off for validation, the same ones whatever the run's seed; returns (rest, split-off)."""
    if not 0 < count < len(examples):
        raise DataError(
            f"data.validation asks for {count} rows of {examples.source}, which has {len(examples)}",
            allowed="One or more can be taken out, and one or more must be left to train on",
            do="Ask for another number, or name a file",
        )
    order = permute(np.arange(len(examples)), len(examples), 0, 0, "validation").tolist()
    return examples.take(sorted(order[count:])), examples.take(sorted(order[:count]))


def _require(path: Path, column: str, values: Sequence[Any], kinds: tuple[type, ...]) -> None:
    """Refuse what is missing or of another type; a label that is blank or no number is missing too."""
    is_text = kinds == (str,)
    for row, value in enumerate(values):
        missing = value is None or (not is_text and (value == "" or value != value))
        if missing or not isinstance(value, kinds):
            found = "nothing" if missing else f"a {type(value).__name__}, {value!r}"
            raise DataError(
                f"{path}, row {row + 1}, column {column!r} holds {found}",
                allowed="Every row needs a text" if is_text else "Every row needs a label: a word or a number",
                do="Fill or drop that row",
            )
