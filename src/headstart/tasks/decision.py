"""From probabilities to decisions: class weights, the decision threshold, temperature scaling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from headstart.core.errors import RecipeError
from headstart.core.lazy import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Array = npt.NDArray[np.float64]
ClassWeight = Literal["balanced"] | dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] | None
Threshold = Annotated[float, Field(gt=0, lt=1)] | Literal["tuned"] | None

CLASS_WEIGHT = Field(
    None,
    description="weight of each label in the loss: `balanced` (inversely proportional to its frequency, as in "
    "scikit-learn) or a mapping from labels to weights; labels that it does not name have weight 1",
)
TEMPERATURE_SCALING = Field(
    False,
    description="divide the logits by a temperature that minimizes the loss on the validation rows, so that "
    "probabilities match frequencies (Guo et al. 2017); the saved head includes it",
)

_CANDIDATES = 200
"""Thresholds that are tried at most; they are quantiles of the probabilities."""
_TEMPERATURES = (0.05, 20.0)


def balanced_weights(labels: Sequence[Any], golds: Iterable[Any]) -> list[float]:
    """Return n / (k · nᵢ) for each of k labels: n rows, of which nᵢ have the label."""
    counts = Counter(golds)
    total = sum(counts.values())
    return [total / (len(labels) * counts[label]) for label in labels]


def given_weights(labels: Sequence[Any], weights: Mapping[str, float]) -> list[float]:
    """Return the weight of each label; 1 for a label that is not named. Labels are compared as text."""
    names = [str(label) for label in labels]
    unknown = [name for name in weights if name not in names]
    if unknown:
        raise RecipeError(
            f"task.class_weight names {', '.join(map(repr, unknown[:5]))}, which no training row has",
            allowed=f"Labels of the training rows: {', '.join(names[:20])}",
            do="Correct task.class_weight",
        )
    return [weights.get(name, 1.0) for name in names]


def fit_temperature(negative_log_likelihood: Callable[[Array], float], logits: Array) -> float:
    """Return the temperature that minimizes the negative log-likelihood of logits divided by it.

    Paper: Guo et al. 2017, On Calibration of Modern Neural Networks, section 4.2
    """
    from scipy.optimize import minimize_scalar

    bounds = tuple(np.log(_TEMPERATURES))
    found = minimize_scalar(lambda log: negative_log_likelihood(logits / np.exp(log)), bounds=bounds, method="bounded")
    return float(np.exp(found.x))


def best_threshold(probabilities: Array, score: Callable[[float], float]) -> float:
    """Return the threshold with the highest score among quantiles of the probabilities and 0.5.

    Of several thresholds with the same score, the one that is nearest to 0.5 is returned.
    """
    quantiles = np.quantile(probabilities, np.linspace(0, 1, _CANDIDATES + 1))
    between = (quantiles[1:] + quantiles[:-1]) / 2
    candidates = [0.5, *(float(value) for value in np.unique(between) if 0 < value < 1)]
    return max(candidates, key=lambda value: (score(value), -abs(value - 0.5)))


def scale_output(model: PreTrainedModel, outputs: int, factor: float) -> None:
    """Multiply the logits of a head by a factor, in the weights of its output layer.

    So every program that loads the saved model gets the scaled logits.
    """
    layer = output_layer(model, outputs)
    if layer is None:
        raise RecipeError(
            f"{type(model).__name__} has no linear output layer with {outputs} outputs",
            allowed="Temperature scaling changes the weights of the output layer",
            do="Set task.temperature_scaling to false",
        )
    with torch.no_grad():
        layer.weight.mul_(factor)
        if layer.bias is not None:
            layer.bias.mul_(factor)


def output_layer(model: PreTrainedModel, outputs: int) -> torch.nn.Linear | None:
    """Return the last linear layer with this number of outputs: the output layer of a head."""
    linear = (module for module in reversed(list(model.modules())) if isinstance(module, torch.nn.Linear))
    return next((module for module in linear if module.out_features == outputs), None)


def sigmoid(logits: Array) -> Array:
    """Return the logistic function, without overflow."""
    return np.exp(-np.logaddexp(0.0, -np.asarray(logits, dtype=np.float64)))
