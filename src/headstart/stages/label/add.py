"""Add the rows that a person has labeled to the training data."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.core import artifact
from headstart.core.errors import DataError, RecipeError
from headstart.stages.label import sheet
from headstart.stages.label.model import Labeler
from headstart.tasks import labelled, tables


def run(filled: Path, model: Path, train: Path, to: Path) -> dict[str, Any]:
    """Write the training data with the rows of a filled sheet; a text that is there already gets the new label.

    Args:
        filled: a sheet that `headstart label choose` wrote and a person filled in, or an export of Label Studio.
        model: the model that the rows were chosen with.
        train: the training data until now.
        to: the new training data, a Parquet file.
    """
    if to.suffix.lower() != ".parquet":
        raise RecipeError(f"the output {to} ends in {to.suffix!r}", allowed="Training data is written to .parquet")
    if to.exists():
        raise DataError(f"{to} exists already", do="Choose another file, or remove it")
    labeler = Labeler.open(model)
    rows = [row for row in sheet.read(filled, labeler.columns, labeler.label, labeler.separator).rows if row.labels]
    if not rows:
        raise DataError(
            f"no row of {filled} has a label", do=f"Fill in the column {labeler.label!r}, or use `headstart label ask`"
        )
    table, _ = tables.read(train, text_columns=labeler.columns, columns=[*labeler.columns, labeler.label])
    # Faulty training data is refused here, with the sentence that `finetune` has for it.
    labelled.read(train, labeler.task.columns("train"))
    kind = table.schema.field(labeler.label).type
    known = {str(label): label for label in labeler.task.labels}
    before = table.to_pylist()
    places: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for i, row in enumerate(before):
        places[tuple(row[name] for name in labeler.columns)].append(i)
    replaced, new = 0, sorted({label for row in rows for label in row.labels} - known.keys())
    for row in rows:
        labels = [known.get(label, label) for label in row.labels]
        value = _value(labels, labeler, kind)
        indices = places.get(tuple(row.texts.values()))
        if indices is None:
            before.append({**dict.fromkeys(table.column_names), **row.texts, labeler.label: value})
        else:
            replaced += 1
            for index in indices:
                before[index] = {**before[index], labeler.label: value}
    _write(to, before, table.schema, labeler.label)
    return {
        "output": str(to), "rows": len(before), "added": len(rows) - replaced, "replaced": replaced, "new_labels": new
    }  # fmt: skip


def _value(labels: list[Any], labeler: Labeler, kind: pa.DataType) -> Any:
    if labeler.separator is None:
        if len(labels) > 1:
            raise DataError(f"a row has the labels {labels}", allowed="The task gives each row one label")
        return labels[0]
    return labels if pa.types.is_list(kind) else labeler.separator.join(map(str, labels))


def _write(to: Path, rows: list[dict[str, Any]], schema: pa.Schema, label: str) -> None:
    try:
        table = pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(
            f"a label does not have the type of the column {label!r} in the training data ({error})",
            do="Correct the labels in the sheet",
        ) from error
    to.parent.mkdir(parents=True, exist_ok=True)
    staging = to.with_name(f".{to.name}.staging")
    pq.write_table(table, staging)
    artifact.flush(staging)
    staging.replace(to)
