"""What baselines on vectors of texts share: pairs, scaling, and a linear model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headstart.core.data import Examples
from headstart.evaluation.baselines import BaselineResult
from headstart.evaluation.linear import Encode, learn
from headstart.evaluation.metrics import Floats, about

Embed = Callable[[Sequence[str]], Floats]
"""Returns one vector for each text."""


def learn_from_vectors(
    name: str, splits: Sequence[Examples], metric: str, prepare: Callable[[], tuple[Embed, dict[str, Any]]]
) -> BaselineResult:
    """Fit logistic regression (ridge for numbers) to vectors of texts, with C chosen on the validation rows.

    Pairs are encoded as in SentEval: both vectors, their absolute difference and their product. `prepare` returns the
    function that computes vectors, with settings to report; it raises `NotApplicable` where there is none.
    """

    def prepare_rows() -> tuple[Encode, dict[str, Any]]:
        embed, settings = prepare()
        rows = _features(splits[0], embed)
        mean, sd = rows.mean(axis=0), rows.std(axis=0) + 1e-6
        return lambda examples: (_features(examples, embed) - mean) / sd, settings

    fit = _regressor if about(metric).of == "number" else _classifier
    return learn(name, splits, metric, prepare_rows, fit)


def _features(examples: Examples, embed: Embed) -> Floats:
    """Return one row per example: the text's vector, or for pairs both, their difference and their product."""
    vectors = [embed(values) for values in examples.columns.values()]
    if len(vectors) == 1:
        return vectors[0]
    left, right = vectors[:2]
    return np.hstack([*vectors, np.abs(left - right), left * right])


def _classifier(rows: Floats, labels: Sequence[Any], C: float) -> Callable[[Floats], list[Any]]:
    from sklearn.linear_model import LogisticRegression

    classes = sorted(set(labels))
    number = {label: code for code, label in enumerate(classes)}
    model = LogisticRegression(C=C, max_iter=1000).fit(rows, [number[label] for label in labels])
    return lambda new: [classes[code] for code in model.predict(new)]


def _regressor(rows: Floats, labels: Sequence[Any], C: float) -> Callable[[Floats], list[Any]]:
    from sklearn.linear_model import Ridge

    model = Ridge(alpha=1 / C).fit(rows, [float(label) for label in labels])
    return lambda new: [float(value) for value in model.predict(new)]
