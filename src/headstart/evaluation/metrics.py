"""The metrics that a task may name: gold and predicted labels (or numbers) in, one float out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headstart.core import registry
from headstart.core.errors import DataError

Metric = Callable[[Sequence[Any], Sequence[Any]], float]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

REGRESSION = frozenset({"pearson", "spearman"})
"""Metrics over numbers; a problem that is measured by one of them is a regression."""


def accuracy(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Share of examples whose predicted label is the gold one."""
    from sklearn.metrics import accuracy_score

    (gold_codes, predicted_codes), _ = label_codes(gold, predicted)
    return float(accuracy_score(gold_codes, predicted_codes))


def f1(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """F1 of the positive class of two: the second label in sorted order (1 of 0 and 1).

    Where a single label occurs there is no second one, and the value is 0.0; so it is where no positive
    example is found, since precision and recall are then both nought.
    Paper: van Rijsbergen 1979, Information Retrieval
    """
    from sklearn.metrics import f1_score

    (gold_codes, predicted_codes), classes = label_codes(gold, predicted)
    if len(classes) > 2:
        raise DataError(
            f"f1 met {len(classes)} labels ({', '.join(map(repr, classes[:5]))}{', …' if len(classes) > 5 else ''})",
            allowed="It is defined for two",
            do="Use macro_f1 or accuracy",
        )
    return float(f1_score(gold_codes, predicted_codes, labels=[1], average="macro", zero_division=0.0))


def macro_f1(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Mean over the labels of each label's F1, so that rare ones count as much as frequent ones.

    A label counts if it occurs among the gold or the predicted ones.
    """
    from sklearn.metrics import f1_score

    (gold_codes, predicted_codes), _ = label_codes(gold, predicted)
    return float(f1_score(gold_codes, predicted_codes, average="macro", zero_division=0.0))


def matthews(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Matthews correlation of two labellings, for any number of labels; 0.0 is chance.

    Where gold or predicted hold a single label the correlation is undefined; it is 0.0 then, because such
    predictions tell nothing about the gold labels.
    Paper: Matthews 1975; Gorodkin 2004 for more than two labels
    """
    from sklearn.metrics import matthews_corrcoef

    (gold_codes, predicted_codes), classes = label_codes(gold, predicted)
    return float(matthews_corrcoef(gold_codes, predicted_codes)) if len(classes) > 1 else 0.0


def pearson(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Pearson correlation of predicted and gold numbers.

    Constant numbers on either side leave it undefined; it is 0.0 then, because a constant prediction says
    nothing about the order of the gold values (and a table with nan in it can hold no mean).
    Paper: Pearson 1895
    """
    from scipy.stats import pearsonr

    return _correlation(pearsonr, gold, predicted)


def spearman(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Spearman rank correlation of predicted and gold numbers; ties share their mean rank.

    Constant numbers on either side give 0.0, for the reason that `pearson` states.
    Paper: Spearman 1904
    """
    from scipy.stats import spearmanr

    return _correlation(spearmanr, gold, predicted)


def compute(names: Iterable[str], gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
    """Compute the named metrics of the registry, plugins' included, in the given order."""
    return {name: float(registry.resolve("metrics", name)(gold, predicted)) for name in names}


def label_codes(gold: Sequence[Any], *predictions: Sequence[Any]) -> tuple[list[Ints], list[Any]]:
    """Number the labels of gold and any predictions by their sorted order; return the numbers and the labels."""
    sequences = [_plain(gold), *map(_plain, predictions)]
    _same_length(sequences)
    try:
        classes = sorted(set().union(*sequences))
    except TypeError as error:
        kinds = [sorted({type(label).__name__ for label in sequence}) for sequence in sequences]
        raise DataError(
            f"gold labels are {' and '.join(kinds[0])}, predicted ones {' and '.join(kinds[-1])}; they do not compare",
            do="Give both as the data has them: all text or all numbers",
        ) from error
    number = {label: code for code, label in enumerate(classes)}
    return [np.array([number[label] for label in sequence], dtype=np.int64) for sequence in sequences], classes


def numbers(gold: Sequence[Any], *predictions: Sequence[Any]) -> list[Floats]:
    """Turn gold and any predictions into arrays of finite numbers."""
    sequences = [_plain(gold), *map(_plain, predictions)]
    _same_length(sequences)
    arrays = []
    for role, sequence in zip(["gold", *["predicted"] * len(predictions)], sequences, strict=True):
        try:
            array = np.array([float(value) for value in sequence], dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"a {role} value is not a number ({error})", do="Use accuracy or f1 for labels") from error
        if not np.isfinite(array).all():
            where = int(np.flatnonzero(~np.isfinite(array))[0])
            raise DataError(f"{role} value {where} is {array[where]}", allowed="A correlation needs finite numbers")
        arrays.append(array)
    return arrays


def _correlation(function: Callable[..., Any], gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    gold_values, predicted_values = numbers(gold, predicted)
    if len(gold_values) < 2:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = float(function(gold_values, predicted_values).statistic)
    return 0.0 if math.isnan(value) else value


def _plain(sequence: Sequence[Any]) -> list[Any]:
    """Turn arrays into lists of Python's own values, which hash and sort alike across sources."""
    return sequence.tolist() if isinstance(sequence, np.ndarray) else list(sequence)


def _same_length(sequences: list[list[Any]]) -> None:
    lengths = [len(sequence) for sequence in sequences]
    other = next((length for length in lengths if length != lengths[0]), None)
    if other is not None:
        raise DataError(
            f"there are {lengths[0]} gold values and {other} predictions",
            allowed="A metric needs one prediction per gold value",
        )
    if lengths[0] == 0:
        raise DataError("there are no examples to measure on", do="Give a split with at least one row")
