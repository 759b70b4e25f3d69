"""What linear baselines share: a check of the rows, and the choice of C on the validation rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from headstart.core import registry
from headstart.core.data import Examples
from headstart.core.errors import DataError
from headstart.evaluation.baselines import BaselineResult, NotApplicable, require_numbers
from headstart.evaluation.metrics import about

C_GRID = (0.01, 0.1, 1.0, 10.0, 100.0)
Predict = Callable[[Any], list[Any]]
Encode = Callable[[Examples], Any]


def learn(
    name: str,
    splits: Sequence[Examples],
    metric: str,
    prepare: Callable[[], tuple[Encode, Mapping[str, Any]]],
    fit: Callable[[Any, Sequence[Any], float], Predict],
) -> BaselineResult:
    """Fit one model for each C on the training rows and predict the test rows with the best on the validation rows.

    `prepare` fits the features on the training rows and returns the encoder with settings to report beside C. It is
    called only where the training rows have more than one label. `fit` returns a model for features, gold values and C.
    """
    started = time.perf_counter()
    train, validation, test = splits
    _require_applicable(splits, about(metric).of)
    if not len(train) or not len(validation):
        empty = "training" if not len(train) else "validation"
        raise DataError(
            f"the {name} baseline has no {empty} rows", do="It needs both: C is chosen on the validation rows"
        )
    if about(metric).of == "label" and len(set(train.labels)) < 2:
        why = {"C": None, "reason": "the training rows have one label"}
        return BaselineResult([train.labels[0]] * len(test), why, time.perf_counter() - started)
    if about(metric).of == "label set":
        fit = partial(_fit_each_label, fit)
    encode, settings = prepare()
    rows, held_out = encode(train), encode(validation)
    measure = registry.resolve("metrics", metric)
    best_score, best_C, best = -np.inf, C_GRID[0], None
    for C in C_GRID:
        predict = fit(rows, train.labels, C)
        score = measure(validation.labels, predict(held_out))
        if score > best_score:
            best_score, best_C, best = score, C, predict
    assert best is not None
    predictions = best(encode(test)) if len(test) else []
    chosen = {"C": best_C, f"validation_{metric}": float(best_score), **settings}
    return BaselineResult(predictions, chosen, time.perf_counter() - started)


def _fit_each_label(
    fit: Callable[[Any, Sequence[Any], float], Predict], rows: Any, golds: Sequence[Any], C: float
) -> Predict:
    """Fit one model for each label, which predicts whether a row has it."""
    labels = sorted(set().union(*golds))
    models = {}
    for label in labels:
        present = [label in gold for gold in golds]
        models[label] = fit(rows, present, C) if not all(present) else None

    def predict(new: Any) -> list[Any]:
        found = {label: [True] * new.shape[0] if model is None else model(new) for label, model in models.items()}
        return [[label for label in labels if found[label][row]] for row in range(new.shape[0])]

    return predict


def _require_applicable(splits: Sequence[Examples], gold: str) -> None:
    """Refuse rows that a linear model of texts cannot learn."""
    train = splits[0]
    if gold == "number":
        require_numbers(train)
    if not all(train.columns.keys() <= split.columns.keys() for split in splits):
        raise NotApplicable(
            "it reads the same columns in all splits, and the held-out rows lack some columns of the training rows"
        )
    if gold not in ("label", "number", "label set"):
        raise NotApplicable(
            f"it predicts a label or a number for each row, and the gold values are of the kind {gold!r}"
        )
    not_text = next(
        (name for name, values in train.columns.items() if any(not isinstance(v, str) for v in values)), None
    )
    if not_text is not None:
        raise NotApplicable(f"it reads texts, and the column {not_text!r} has other values")
