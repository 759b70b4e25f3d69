"""Choose the rows of a pool that are worth labeling."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headstart.core.data import InputColumn
from headstart.core.errors import DataError, RecipeError
from headstart.evaluation.label_errors import find_label_errors
from headstart.stages.label import sheet, strategies
from headstart.stages.label.model import Labeler
from headstart.stages.label.sheet import Chosen, Sheet
from headstart.stages.label.strategies import Strategy
from headstart.stages.predict.inputs import inputs_of, problem_of
from headstart.tasks import labelled, tables
from headstart.tasks.table_files import locate
from headstart.tasks.table_rows import read_rows, survey

_DIGITS = 4


def run(
    pool: Path, model: Path, to: Path, number: int, strategy: Strategy = "diverse", exclude: Sequence[Path] = (),
    seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Choose rows of a pool and write them to a sheet; returns what was done.

    Args:
        pool: a table with the texts that the model reads.
        model: an output of `headstart finetune`.
        to: the sheet, .csv or .json.
        number: how many rows to choose.
        strategy: how to choose.
        exclude: tables whose texts are left out, such as the training data.
        seed: of what is drawn at random.
    """
    _require_new(to)
    labeler = Labeler.open(model)
    rows = _distinct(_read(pool, labeler), [_read(path, labeler) for path in exclude])
    if not rows:
        raise DataError(f"{pool} has no row that could be chosen", do="Pass a pool with other texts")
    if number > len(rows):
        raise RecipeError(f"{number:,} rows are to be chosen from {len(rows):,}", do="Choose fewer with --number")
    texts = [list(row.texts.values()) for row in rows]
    predictions, scores = labeler.predict(texts)
    margins = np.array([strategies.margin(one, labeler.threshold) for one in scores])
    chosen = strategies.choose(
        strategy, margins, number, lambda some: labeler.vectors([texts[i] for i in some]), seed
    )  # fmt: skip
    _write(to, labeler, [_with_prediction(rows[i], predictions[i], scores[i]) for i in chosen])
    return {
        "output": str(to), "chosen": len(chosen), "pool": len(rows), "strategy": strategy,
        "mean_margin": float(margins[chosen].mean()),
        "mean_margin_of_the_pool": float(margins.mean()),
    }  # fmt: skip


def run_errors(data: Path, model: Path, to: Path, number: int) -> dict[str, Any]:
    """Write the labeled rows whose label is probably wrong to a sheet, with the label that the model suggests.

    The model must not have been trained on these rows.
    """
    _require_new(to)
    labeler = Labeler.open(model)
    if labeler.separator is not None:
        raise DataError(
            f"the model {model} gives a row several labels", allowed="Wrong labels are found among single ones"
        )
    examples = labelled.read(data, labeler.task.columns("test"))
    known = set(labeler.task.labels)
    unknown = sorted({str(label) for label in examples.labels if label not in known})
    if unknown:
        raise DataError(f"{data} has the label {unknown[0]!r}, which the model does not know")
    texts = [list(row) for row in zip(*(examples.columns[name] for name in labeler.columns), strict=True)]
    predictions, scores = labeler.predict(texts)
    issues = find_label_errors(examples.labels, scores)[:number]
    rows = []
    for issue in issues:
        row = Chosen(issue.row + 1, dict(zip(labeler.columns, texts[issue.row], strict=True)), [str(issue.given)])
        rows.append(_with_prediction(row, predictions[issue.row], scores[issue.row]))
    _write(to, labeler, rows)
    return {"output": str(to), "suspected": len(rows), "rows": len(texts)}


def _require_new(to: Path) -> None:
    sheet.require_suffix(to)
    for path in sheet.files_of(to):
        if path.exists():
            # It may hold hours of a person's work.
            raise DataError(f"{path} exists already", do="Choose another file, or remove it")


def _write(to: Path, labeler: Labeler, rows: list[Chosen]) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    Sheet(rows, labeler.label, labeler.separator).write(to, [str(label) for label in labeler.task.labels])


def _read(path: Path, labeler: Labeler) -> list[Chosen]:
    """Return the rows of a table that can be predicted."""
    located = locate(path)
    forms = [tables.recognize(file, labeler.columns) for file in located.files]
    columns: Sequence[InputColumn] = inputs_of(labeler.task, survey(located, forms).schema.names, path).columns
    return [
        Chosen(number, {column.name: row.values[column.name] for column in columns})
        for number, row in enumerate(read_rows(located, forms), start=1)
        if not problem_of(row, columns)
    ]


def _distinct(pool: list[Chosen], excluded: list[list[Chosen]]) -> list[Chosen]:
    """Return the first row of each text that is not excluded."""
    seen = {tuple(row.texts.values()) for rows in excluded for row in rows}
    # An earlier sheet may be excluded too, in which some texts start with an apostrophe.
    seen |= {tuple(map(sheet.plain, texts)) for texts in seen}
    kept = []
    for row in pool:
        key = tuple(row.texts.values())
        if key not in seen:
            seen.add(key)
            kept.append(row)
    return kept


def _with_prediction(row: Chosen, prediction: Any, scores: dict[Any, float]) -> Chosen:
    labels = prediction if isinstance(prediction, list) else [prediction]
    row.prediction = [str(label) for label in labels]
    row.probability = round(min((scores[label] for label in labels), default=0.0), _DIGITS) if labels else None
    return row
