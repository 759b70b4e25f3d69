"""Metrics for one label per example: accuracy, F1, Matthews correlation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from headstart.core.data import Bools
from headstart.core.errors import DataError
from headstart.evaluation.metrics import CORRECT, F1, Floats, Ints, Sums, metric, plain, same_length


def label_codes(gold: Sequence[Any], *predictions: Sequence[Any]) -> tuple[list[Ints], list[Any]]:
    """Encode the labels of gold and any predictions by their sorted order; return the codes and the labels."""
    sequences = [plain(gold), *map(plain, predictions)]
    same_length(sequences)
    try:
        classes = sorted(set().union(*sequences))
    except TypeError as error:
        kinds = [sorted({type(label).__name__ for label in sequence}) for sequence in sequences]
        raise DataError(
            f"gold labels are {' and '.join(kinds[0])}, predicted labels {' and '.join(kinds[-1])}",
            allowed="Both must be of one type",
            do="Give both as they are in the data: all text or all numbers",
        ) from error
    number = {label: code for code, label in enumerate(classes)}
    return [np.array([number[label] for label in sequence], dtype=np.int64) for sequence in sequences], classes


def _counts(gold: Sequence[Any], predicted: Sequence[Any]) -> sparse.csr_matrix:
    """Return three indicators for each example and label: correct, gold, predicted; shape (examples, 3 × labels)."""
    (gold_codes, predicted_codes), classes = label_codes(gold, predicted)
    rows, shape = np.arange(len(gold_codes)), (len(gold_codes), len(classes))
    hits = (gold_codes == predicted_codes).astype(np.float64)
    parts = [(hits, gold_codes), (np.ones(len(rows)), gold_codes), (np.ones(len(rows)), predicted_codes)]
    return sparse.hstack(
        [sparse.csr_matrix((values, (rows, codes)), shape=shape) for values, codes in parts], format="csr"
    )


def _by_label(combine: Callable[[Floats, Floats, Floats], Floats]) -> Callable[[Floats], Floats]:
    """Return a function of the sums over `_counts` from a function of each label's three counts."""
    return lambda sums: combine(*np.split(sums, 3, axis=1))


def _f1_per_label(hits: Floats, gold: Floats, predicted: Floats) -> tuple[Floats, Bools]:
    occurs = gold + predicted
    return np.divide(2 * hits, occurs, out=np.zeros_like(hits), where=occurs > 0), occurs > 0


def _f1(hits: Floats, gold: Floats, predicted: Floats) -> Floats:
    values, _ = _f1_per_label(hits, gold, predicted)
    return values[:, 1] if values.shape[1] > 1 else np.zeros(len(values))


def _macro_f1(hits: Floats, gold: Floats, predicted: Floats) -> Floats:
    values, occurs = _f1_per_label(hits, gold, predicted)
    mean: Floats = values.sum(axis=1) / occurs.sum(axis=1)
    return mean


def _matthews(hits: Floats, gold: Floats, predicted: Floats) -> Floats:
    total = gold.sum(axis=1)
    covariance = hits.sum(axis=1) * total - (gold * predicted).sum(axis=1)
    spread = (total**2 - (gold**2).sum(axis=1)) * (total**2 - (predicted**2).sum(axis=1))
    return np.divide(covariance, np.sqrt(spread), out=np.zeros_like(covariance), where=spread > 0)


def _hits(gold: Sequence[Any], predicted: Sequence[Any]) -> Floats:
    (gold_codes, predicted_codes), _ = label_codes(gold, predicted)
    return np.column_stack([gold_codes == predicted_codes, np.ones(len(gold_codes))]).astype(np.float64)


def ratio_of_sums(sums: Floats) -> Floats:
    """Return the first sum over the second."""
    ratio: Floats = sums[:, 0] / sums[:, 1]
    return ratio


def _two_codes(gold: Sequence[Any], predicted: Sequence[Any]) -> list[Ints]:
    codes, classes = label_codes(gold, predicted)
    if len(classes) > 2:
        raise DataError(
            f"f1 got {len(classes)} labels ({', '.join(map(repr, classes[:5]))}{', …' if len(classes) > 5 else ''})",
            allowed="It is defined for two",
            do="Use macro_f1 or accuracy",
        )
    return codes


def _counts_of_two(gold: Sequence[Any], predicted: Sequence[Any]) -> sparse.csr_matrix:
    _two_codes(gold, predicted)
    return _counts(gold, predicted)


@metric("label", sums=Sums(_hits, ratio_of_sums), family=CORRECT)
def accuracy(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Fraction of examples whose predicted label is the gold label."""
    from sklearn.metrics import accuracy_score

    (gold_codes, predicted_codes), _ = label_codes(gold, predicted)
    return float(accuracy_score(gold_codes, predicted_codes))


@metric("label", sums=Sums(_counts_of_two, _by_label(_f1)), family=F1)
def f1(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """F1 of the positive class of two: the second label in sorted order (1 of 0 and 1).

    The value is 0.0 where only one label occurs, and where no positive example is found (zero precision and recall).
    Paper: van Rijsbergen 1979, Information Retrieval
    """
    from sklearn.metrics import f1_score

    gold_codes, predicted_codes = _two_codes(gold, predicted)
    return float(f1_score(gold_codes, predicted_codes, labels=[1], average="macro", zero_division=0.0))


@metric("label", sums=Sums(_counts, _by_label(_macro_f1)), family=F1)
def macro_f1(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Mean of the F1 of each label, so that rare labels count as much as frequent ones.

    A label counts if it occurs among the gold or the predicted labels.
    """
    from sklearn.metrics import f1_score

    (gold_codes, predicted_codes), _ = label_codes(gold, predicted)
    return float(f1_score(gold_codes, predicted_codes, average="macro", zero_division=0.0))


@metric("label", sums=Sums(_counts, _by_label(_matthews)), family="label correlation")
def matthews(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Matthews correlation of predicted and gold labels, for any number of labels; 0.0 is the chance level.

    The correlation is undefined where gold or predicted labels are constant. It is 0.0 then, because such predictions
    carry no information about the gold labels.
    Paper: Matthews 1975; Gorodkin 2004 for more than two labels
    """
    from sklearn.metrics import matthews_corrcoef

    (gold_codes, predicted_codes), classes = label_codes(gold, predicted)
    return float(matthews_corrcoef(gold_codes, predicted_codes)) if len(classes) > 1 else 0.0
