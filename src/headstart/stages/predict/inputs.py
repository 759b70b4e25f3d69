"""The columns of a file that a task reads, and the rows that can be predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.core import registry
from headstart.core.contracts import Task
from headstart.core.data import InputColumn
from headstart.core.errors import DataError
from headstart.tasks.embed import Embed
from headstart.tasks.labelled import TEXT, shortened
from headstart.tasks.table_files import TableFiles
from headstart.tasks.table_rows import Row


@dataclass(frozen=True)
class TaskInputs:
    """The columns that a task reads from a file; with `as_vectors`, the prediction is the vector of the only one."""

    columns: tuple[InputColumn, ...]
    as_vectors: bool = False


def expected_columns(task: Task) -> list[str]:
    """Return the names of the columns that a task reads to predict."""
    return [column.name for column in task.columns("test") if not column.is_gold]


def inputs_of(task: Task, names: Sequence[str], path: Path | TableFiles) -> TaskInputs:
    """Return which of the columns the task reads; raises if one is missing. `path` is named in errors.

    For `embed`, two texts give their similarity, and a file with one text column gives vectors.
    """
    columns = tuple(column for column in task.columns("test") if not column.is_gold)
    if isinstance(task, Embed):
        return _embed_inputs(task, columns, names, path)
    for column in columns:
        if column.name not in names:
            raise DataError(
                f"{path} has no column {column.name!r}{registry.suggest(column.name, list(names))}",
                allowed=f"The model reads {_listed([c.name for c in columns])}; the file has {_listed(names)}",
                do="Rename the column",
            )
    return TaskInputs(columns)


def problem_of(row: Row, columns: Sequence[InputColumn]) -> str:
    """Return why a row cannot be predicted; empty if it can."""
    if row.problem:
        return row.problem
    values = [row.values.get(column.name) for column in columns]
    for column, value in zip(columns, values, strict=True):
        if value is None or value != value:
            return f"the column {column.name!r} is empty"
        if not column.kind.fits(value):
            return f"the column {column.name!r} is {shortened(value)}, but must be {column.kind.needs}"
        if not _is_unicode(value):
            return f"the column {column.name!r} has a character that is not valid Unicode"
    if all(isinstance(value, str) and not value.strip() for value in values):
        return f"the column {columns[0].name!r} is empty"
    return ""


def _embed_inputs(
    task: Embed, columns: Sequence[InputColumn], names: Sequence[str], path: Path | TableFiles
) -> TaskInputs:
    texts = [column for column in columns if column.kind.is_text]
    if task.config.test == "similarity" and all(column.name in names for column in texts):
        return TaskInputs(tuple(texts))
    known = [*(task.config.test_texts or ()), *task.config.texts, "text"]
    name = next((name for name in known if name in names), names[0] if len(names) == 1 else None)
    if name is None:
        raise DataError(
            f"{path} has no column that the model embeds",
            allowed=f"One of {_listed(dict.fromkeys(known))}; the file has {_listed(names)}",
            do="Rename the column with the texts to `text`",
        )
    return TaskInputs((InputColumn(name, TEXT, "task.texts"),), as_vectors=True)


def _is_unicode(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_unicode, value))
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return False
    return True


def _listed(names: Sequence[str] | dict[str, Any]) -> str:
    return ", ".join(map(repr, names)) or "no columns"
