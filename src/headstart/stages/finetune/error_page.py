"""The page of errors beside a finished model, and the probabilities of each seed that it is made from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headstart.core import config
from headstart.core.artifact import Staging
from headstart.core.recipes.variables import hide
from headstart.evaluation.report import page
from headstart.evaluation.report.facts import evaluate_rows
from headstart.evaluation.report.predicted import Predicted
from headstart.stages.finetune.result import MethodResult, cell_name
from headstart.stages.finetune.setup import Setup

SCORES = "scores.json"
"""The file of a cell with the probability of each label for each test row."""


def write_scores(path: Path, scores: Sequence[Any]) -> None:
    """Write the probabilities of labels; other scores, and none, leave no file."""
    if not scores or not all(isinstance(row, Mapping) for row in scores):
        return
    labels = list(dict.fromkeys(label for row in scores for label in row))
    rows = [[row.get(label) for label in labels] for row in scores]
    path.write_text(json.dumps({"labels": labels, "rows": rows}, ensure_ascii=False), encoding="utf-8")


def read_scores(cell: Path) -> list[dict[Any, float]]:
    """Return the probabilities of a cell; empty if it has none, as cells of older versions."""
    path = cell / SCORES
    if not path.is_file():
        return []
    values = json.loads(path.read_text(encoding="utf-8"))
    return [
        {label: value for label, value in zip(values["labels"], row, strict=True) if value is not None}
        for row in values["rows"]
    ]


def write_page(setup: Setup, cells: Path, runs: Sequence[MethodResult], best: MethodResult, staging: Staging) -> None:
    """Write the page of errors of the best seed on the test rows; wrong labels are found by all seeds together."""
    scores = {run.seed: read_scores(cells / cell_name(run.method, run.seed)) for run in runs}
    predicted = Predicted(
        setup.splits.test,
        setup.task.metrics(),
        best.predictions,
        scores[best.seed],
        list(filter(None, scores.values())),
        config.to_dict(setup.recipe.task)["kind"] != "embed",
    )
    # Neither the folder nor the time is on the page: equal runs write equal pages.
    name = f"{best.method}, seed {best.seed}"
    page.write(evaluate_rows(predicted, name, hide(setup.splits.test.source)), staging)
