"""The file in which chosen rows are labeled: a CSV file, or an import of Label Studio."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from headstart.core import artifact
from headstart.core.errors import DataError, RecipeError
from headstart.core.pages import spreadsheet
from headstart.tasks import tables
from headstart.tasks.table_files import require_table

ROW, PREDICTION, PROBABILITY = "row", "prediction", "probability"
_SUFFIXES = (".csv", ".json")
_FROM, _TO = "label", "text"
"""The names of the tags in the configuration of Label Studio."""


@dataclass
class Chosen:
    """A row to label."""

    row: int
    """Its number in the pool, from 1."""
    texts: dict[str, str]
    """The texts that the task reads, by column."""
    labels: list[str] = field(default_factory=list)
    """The labels that a person gave; empty if none did yet."""
    prediction: list[str] = field(default_factory=list)
    probability: float | None = None


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the files of a sheet: for Label Studio, the tasks and the configuration of the labels."""
    return (path,) if path.suffix == ".csv" else (path, path.with_suffix(".xml"))


@dataclass
class Sheet:
    """The chosen rows, and what a person needs to label them."""

    rows: list[Chosen]
    label: str
    """The name of the column with the labels."""
    separator: str | None = None
    """Separates the labels of a row; None if each row has one label."""

    def write(self, path: Path, labels: Sequence[str] = ()) -> None:
        """Write the sheet; `labels` are those that a person may choose from, for Label Studio."""
        if require_suffix(path) == ".csv":
            artifact.write_whole(path, self._csv())
            return
        tasks, configuration = files_of(path)
        artifact.write_whole(tasks, json.dumps([self._task(row) for row in self.rows], indent=1, ensure_ascii=False))
        artifact.write_whole(configuration, self._configuration(labels))

    def _csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        columns = list(self.rows[0].texts) if self.rows else []
        writer.writerow([ROW, *columns, PREDICTION, PROBABILITY, self.label])
        for row in self.rows:
            cells = [row.row, *row.texts.values(), self._joined(row.prediction), row.probability,
                     self._joined(row.labels)]  # fmt: skip
            writer.writerow([spreadsheet.cell(value) for value in cells])
        return text.getvalue()

    def _joined(self, labels: Sequence[str]) -> str:
        return (self.separator or "").join(labels)

    def _task(self, row: Chosen) -> dict[str, Any]:
        """Return the row as a task of Label Studio, with the prediction as a suggestion."""
        task: dict[str, Any] = {"data": {ROW: row.row, **row.texts}}
        if row.prediction:
            task["predictions"] = [{"score": row.probability, "result": [_choices(row.prediction)]}]
        if row.labels:
            task["annotations"] = [{"result": [_choices(row.labels)]}]
        return task

    def _configuration(self, labels: Sequence[str]) -> str:
        """Return the labeling interface for Label Studio."""
        texts = "".join(
            f"  <Text name={quoteattr(_TO if i == 0 else f'{_TO}-{i + 1}')} value={quoteattr('$' + name)}/>\n"
            for i, name in enumerate(self.rows[0].texts if self.rows else ())
        )
        choices = "".join(f"    <Choice value={quoteattr(label)}/>\n" for label in labels)
        kind = "multiple" if self.separator else "single"
        return (
            f'<View>\n{texts}  <Choices name="{_FROM}" toName="{_TO}" choice="{kind}">\n{choices}'
            "  </Choices>\n</View>\n"
        )


def require_suffix(path: Path) -> str:
    """Return the suffix of a sheet; raises if it names no format."""
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise RecipeError(
            f"the file {path} ends in {path.suffix!r}",
            allowed="Rows to label are written to .csv for a spreadsheet, or to .json for Label Studio",
            do="Choose a name that ends in one of these",
        )
    return suffix


def read(path: Path, columns: Sequence[str], label: str, separator: str | None) -> Sheet:
    """Read a sheet that a person has filled in, or an export of Label Studio (format JSON).

    Args:
        path: the file.
        columns: the columns of the texts.
        label: the column of the labels.
        separator: what separates the labels of a row; None for one label per row.
    """
    require_table(path)
    if require_suffix(path) == ".json":
        return Sheet([_from_task(path, task, columns) for task in _tasks(path)], label, separator)
    table, _ = tables.read(path, text_columns=[ROW, *columns, PREDICTION, label], columns=[*columns, label])
    missing = [name for name in (*columns, label) if name not in table.column_names]
    if missing:
        raise DataError(
            f"{path} has no column {missing[0]!r}",
            allowed=f"The columns of the texts and of the labels are {', '.join(map(repr, (*columns, label)))}",
            do="Pass a file that `headstart label choose` wrote",
        )
    return Sheet([_from_row(row, columns, label, separator) for row in table.to_pylist()], label, separator)


def _from_row(row: dict[str, Any], columns: Sequence[str], label: str, separator: str | None) -> Chosen:
    def split(value: Any) -> list[str]:
        text = plain(value)
        parts = text.split(separator) if separator else [text]
        return [part.strip() for part in parts if part.strip()]

    number = str(row.get(ROW) or "")
    probability = row.get(PROBABILITY)
    return Chosen(
        int(number) if number.isdigit() else 0, {name: plain(row[name]) for name in columns}, split(row[label]),
        split(row.get(PREDICTION)), float(probability) if isinstance(probability, int | float) else None,
    )  # fmt: skip


def plain(value: Any) -> str:
    """Return the text of a cell, without the apostrophe that keeps a spreadsheet from running it."""
    text = "" if value is None else str(value)
    return text[1:] if text.startswith("'") and spreadsheet.cell(text[1:]) == text else text


def _choices(labels: Sequence[str]) -> dict[str, Any]:
    return {"from_name": _FROM, "to_name": _TO, "type": "choices", "value": {"choices": list(labels)}}


def _tasks(path: Path) -> list[dict[str, Any]]:
    try:
        tasks = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON ({error})", do="Export the project from Label Studio as JSON") from error
    if not isinstance(tasks, list) or not all(isinstance(task, dict) and "data" in task for task in tasks):
        raise DataError(
            f"{path} is not an export of Label Studio", allowed="A list of tasks with `data` and `annotations`",
            do="Export the project from Label Studio as JSON",
        )  # fmt: skip
    return tasks


def _from_task(path: Path, task: dict[str, Any], columns: Sequence[str]) -> Chosen:
    """Read a task; of several annotations, the last one counts that was not cancelled."""
    data = task["data"]
    missing = [name for name in columns if not isinstance(data.get(name), str)]
    if missing:
        raise DataError(f"a task in {path} has no text {missing[0]!r}", do="Import the file that `label choose` wrote")
    labels: list[str] = []
    for annotation in task.get("annotations") or []:
        if not annotation.get("was_cancelled"):
            labels = [
                str(choice)
                for part in annotation.get("result") or []
                if part.get("type") == "choices"
                for choice in part["value"]["choices"]
            ]
    return Chosen(int(data.get(ROW) or 0), {name: data[name] for name in columns}, labels)
