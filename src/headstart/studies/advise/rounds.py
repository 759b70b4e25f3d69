"""Rounds of cross-validation over the rows that are not for testing, written as files that cells read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.core import artifact
from headstart.core.errors import DataError
from headstart.stages.init import run as init
from headstart.stages.init.columns import Roles
from headstart.stages.init.splits import NAMES, folds

ROUNDS = 3
_FOLDS = 10
KIND = "rounds of advise"


@dataclass(frozen=True)
class Round:
    """The three files of a round, and how many rows each has."""

    folder: Path
    rows: dict[str, int]

    def data(self) -> dict[str, str]:
        """Return the `data` section of a recipe; the held-out rows take the place of a test file."""
        return {name: str(self.folder / f"{name}.parquet") for name in NAMES}


def write(folder: Path, look: init.Look, group: str | None) -> None:
    """Write the rounds of the training and validation rows of `headstart init`, which wrote them to `look.folder`.

    Each round holds out two of ten folds and takes a third one for validation, so no row is held out twice.
    """
    parts = [pq.read_table(look.folder / f"{name}.parquet") for name in ("train", "validation")]
    table = pa.concat_tables(parts)
    texts, classes = init.texts_and_classes(table, look.roles)
    groups = table.column(group).to_pylist() if group else None
    divided = folds(texts, classes, groups, _FOLDS)
    facts: dict[str, Any] = {"rows": [], "facts": look.facts(), "warnings": look.warnings}
    with artifact.staged(folder, KIND, **facts) as staging:
        for number in range(ROUNDS):
            held_out = divided[2 * number] + divided[2 * number + 1]
            validation = divided[(2 * number + 2) % _FOLDS]
            rows = _with_known_labels(table, look.roles, held_out, validation)
            _require_rows(rows, look)
            (staging / str(number)).mkdir()
            for name in NAMES:
                pq.write_table(table.take(rows[name]), staging / str(number) / f"{name}.parquet")
            staging.facts["rows"].append({name: len(rows[name]) for name in NAMES})


def read(folder: Path) -> list[Round]:
    """Return the rounds that `write` wrote."""
    manifest = artifact.verify(folder, KIND)
    return [Round(folder / str(number), rows) for number, rows in enumerate(manifest["rows"])]


def _require_rows(rows: Mapping[str, Sequence[int]], look: init.Look) -> None:
    empty = next((name for name, members in rows.items() if not members), None)
    if empty is not None:
        raise DataError(
            f"{look.source} has too few rows: no row is left for {'scoring' if empty == 'test' else empty}",
            allowed="Every class needs rows for training, validation and scoring",
            do="Add labeled rows",
        )


def _with_known_labels(
    table: pa.Table, roles: Roles, held_out: Sequence[int], validation: Sequence[int]
) -> dict[str, list[int]]:
    """Return the rows of each file; rows with a label that no training row has are used for training instead."""
    rows = {"test": list(held_out), "validation": list(validation)}
    others = {*held_out, *validation}
    train = [row for row in range(table.num_rows) if row not in others]
    if roles.task != "regression":
        labels = [_items(value, roles) for value in table.column(roles.label).to_pylist()]
        known = {label for row in train for label in labels[row]}
        for name, members in rows.items():
            unknown = [row for row in members if not known.issuperset(labels[row])]
            train += unknown
            known |= {label for row in unknown for label in labels[row]}
            rows[name] = [row for row in members if row not in unknown]
    return {"train": sorted(train), **{name: sorted(members) for name, members in rows.items()}}


def _items(value: Any, roles: Roles) -> list[Any]:
    if roles.task == "multi_label":
        return roles.labels_of(value)
    return list(value) if isinstance(value, list) else [value]
