"""A linear head that is fitted to a network's vectors by scikit-learn, instead of trained by gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headstart.core import registry
from headstart.core.data import LabeledFeatures
from headstart.core.lazy import torch

if TYPE_CHECKING:
    from headstart.adaptation.pooled_network import PooledForSequenceClassification
    from headstart.core.contracts import Task

Array = npt.NDArray[np.float64]
_C = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Inverse strengths of the regularization that are tried."""
_NEVER = -30.0
"""The logit of a label that no training row has."""


def fit_linear_head(model: PooledForSequenceClassification, task: Task, rows: LabeledFeatures) -> int:
    """Fit the head to the vectors of the training rows, and return the number of its parameters.

    The validation rows select C by the task's first metric.

    The vectors are centered and divided by their standard deviation over all dimensions, and the head's weights
    include this, so the saved network is a plain linear layer on the mean of the states.
    """
    with model.returning_vectors():
        train, held_out = (np.asarray(rows.run(part), dtype=np.float64) for part in (rows.train, rows.validation))
    center, scale = train.mean(axis=0), train.std() or 1.0
    train, held_out = (train - center) / scale, (held_out - center) / scale
    targets = np.asarray([feature["labels"] for feature in rows.train])
    measure = registry.resolve("metrics", task.metrics()[0])
    best_score, best = -np.inf, None
    for C in _C:
        weight, bias = _fit(train, targets, model.config.problem_type, model.classifier.out_features, C, _weights(task))
        predictions = task.decode(list(held_out @ weight.T + bias), rows.validation, rows.spec)
        score = float(measure(rows.gold, predictions))
        if best is None or score > best_score:
            best_score, best = score, (weight, bias)
    assert best is not None
    weight = best[0] / scale
    with torch.no_grad():
        model.classifier.weight.copy_(torch.from_numpy(weight))
        model.classifier.bias.copy_(torch.from_numpy(best[1] - weight @ center))
    return sum(parameter.numel() for parameter in model.classifier.parameters())


def _weights(task: Task) -> str | dict[int, float] | None:
    """Return the task's class weights as scikit-learn takes them, by the index of the label."""
    given: str | Mapping[str, float] | None = getattr(task.config, "class_weight", None)  # type: ignore[attr-defined]
    if given is None or isinstance(given, str):
        return given
    return {index: given.get(str(label), 1.0) for index, label in enumerate(task.labels)}  # type: ignore[attr-defined]


def _fit(
    rows: Array, targets: npt.NDArray[Any], problem: str | None, outputs: int, C: float,
    weights: str | dict[int, float] | None,
) -> tuple[Array, Array]:  # fmt: skip
    """Return the weight (outputs × dimensions) and the bias of a linear layer."""
    from sklearn.linear_model import Ridge

    if problem == "regression":
        ridge = Ridge(alpha=1 / C).fit(rows, targets)
        return ridge.coef_[None], np.atleast_1d(ridge.intercept_)
    if problem == "multi_label_classification":
        layers = [
            _one_of_two(rows, targets[:, label], C, _of_label(weights, label)) for label in range(outputs)
        ]  # fmt: skip
        return np.stack([weight for weight, _ in layers]), np.array([bias for _, bias in layers])
    if outputs == 2:
        half, bias = (part / 2 for part in _one_of_two(rows, targets, C, weights))
        return np.stack([-half, half]), np.array([-bias, bias])
    return _one_of_many(rows, targets, outputs, C, weights)


def _of_label(weights: str | dict[int, float] | None, label: int) -> str | dict[int, float] | None:
    """Return the weights of the absence and the presence of one label."""
    return dict.fromkeys((0, 1), weights[label]) if isinstance(weights, dict) else weights


def _one_of_two(
    rows: Array, targets: npt.NDArray[Any], C: float, weights: str | dict[int, float] | None
) -> tuple[Array, float]:
    """Return the weight and the bias of the logit of the second label."""
    from sklearn.linear_model import LogisticRegression

    present = np.unique(targets)
    if len(present) < 2:
        return np.zeros(rows.shape[1]), -_NEVER if present[0] else _NEVER
    model = LogisticRegression(C=C, max_iter=1000, class_weight=weights).fit(rows, targets)
    return model.coef_[0], float(model.intercept_[0])


def _one_of_many(
    rows: Array, targets: npt.NDArray[Any], outputs: int, C: float, weights: str | dict[int, float] | None
) -> tuple[Array, Array]:
    """Return the weights and biases of all labels; those that no row has are never predicted."""
    from sklearn.linear_model import LogisticRegression

    weight, bias = np.zeros((outputs, rows.shape[1])), np.full(outputs, _NEVER)
    present = np.unique(targets)
    if len(present) == 1:
        bias[present[0]] = 0.0
    elif len(present) == 2:
        half, middle = (part / 2 for part in _one_of_two(rows, targets, C, weights))
        weight[present], bias[present] = [-half, half], [-middle, middle]
    else:
        model = LogisticRegression(C=C, max_iter=1000, class_weight=weights).fit(rows, targets)
        weight[present], bias[present] = model.coef_, model.intercept_
    return weight, bias
