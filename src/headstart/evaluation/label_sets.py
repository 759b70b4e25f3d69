"""Metrics for a set of labels per example, as in multi-label classification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from headstart.core.errors import DataError
from headstart.evaluation.confusion import ClassScore
from headstart.evaluation.intervals import wilson
from headstart.evaluation.labels import ratio_of_sums
from headstart.evaluation.metrics import CORRECT, F1, Floats, Sums, metric, plain, same_length

LABEL_SET = "label set"
"""What a gold value is for these metrics."""


def label_sets(gold: Sequence[Any], predicted: Sequence[Any]) -> tuple[list[set[Any]], list[set[Any]], list[Any]]:
    """Return the gold and the predicted sets, and all labels that occur in either, sorted."""
    sequences = [plain(gold), plain(predicted)]
    same_length(sequences)
    for row, labels in enumerate(sequences[0] + sequences[1]):
        if isinstance(labels, str) or not hasattr(labels, "__iter__"):
            raise DataError(
                f"example {row % len(sequences[0])} has the label {labels!r}",
                allowed="A metric of label sets needs a list of labels for each example",
            )
    golds, predictions = ([set(labels) for labels in sequence] for sequence in sequences)
    names = sorted(set().union(*golds, *predictions), key=lambda label: (str(type(label)), label))
    return golds, predictions, names


def _counts(gold: Sequence[Any], predicted: Sequence[Any]) -> sparse.csr_matrix:
    """Return three indicators for each example and label: correct, gold, predicted; shape (examples, 3 × labels)."""
    golds, predictions, names = label_sets(gold, predicted)
    code = {label: i for i, label in enumerate(names)}

    def indicators(sets: Sequence[set[Any]]) -> sparse.csr_matrix:
        pairs = [(row, code[label]) for row, labels in enumerate(sets) for label in labels]
        rows, columns = zip(*pairs, strict=True) if pairs else ((), ())
        return sparse.csr_matrix((np.ones(len(pairs)), (rows, columns)), shape=(len(sets), max(1, len(names))))

    gold_matrix, predicted_matrix = indicators(golds), indicators(predictions)
    return sparse.hstack([gold_matrix.multiply(predicted_matrix), gold_matrix, predicted_matrix], format="csr")


def _macro(hits: Floats, gold: Floats, predicted: Floats) -> Floats:
    occurs = gold + predicted
    values = np.divide(2 * hits, occurs, out=np.zeros_like(hits), where=occurs > 0)
    mean: Floats = values.sum(axis=1) / np.maximum((occurs > 0).sum(axis=1), 1)
    return mean


def _micro(hits: Floats, gold: Floats, predicted: Floats) -> Floats:
    total = gold.sum(axis=1) + predicted.sum(axis=1)
    # Without any label, gold or predicted, there is no error.
    return np.divide(2 * hits.sum(axis=1), total, out=np.ones(len(total)), where=total > 0)


def _of_three(combine: Callable[[Floats, Floats, Floats], Floats]) -> Callable[[Floats], Floats]:
    return lambda sums: combine(*np.split(np.asarray(sums), 3, axis=1))


def _total(combine: Callable[[Floats, Floats, Floats], Floats], gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    sums = np.asarray(_counts(gold, predicted).sum(axis=0)).reshape(1, -1)
    return float(_of_three(combine)(sums)[0])


def _equal(gold: Sequence[Any], predicted: Sequence[Any]) -> Floats:
    golds, predictions, _ = label_sets(gold, predicted)
    return np.array([[a == b, 1.0] for a, b in zip(golds, predictions, strict=True)], dtype=np.float64)


def scores_by_label(gold: Sequence[Any], predicted: Sequence[Any]) -> list[ClassScore]:
    """Return precision, recall and F1 of each label, the most frequent label first."""
    _, _, names = label_sets(gold, predicted)
    sums = np.asarray(_counts(gold, predicted).sum(axis=0)).ravel()
    hits, support, found = (part.astype(int).tolist() for part in np.split(sums, 3))
    scores = [
        ClassScore(
            label, support[i], found[i], hits[i] / found[i] if found[i] else None, wilson(hits[i], support[i]),
            2 * hits[i] / (support[i] + found[i]),
        )
        for i, label in enumerate(names)
    ]  # fmt: skip
    return sorted(scores, key=lambda score: -score.support)


@metric(LABEL_SET, sums=Sums(_counts, _of_three(_macro)), family=F1)
def multi_label_macro_f1(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Mean of the F1 of each label, so that rare labels count as much as frequent ones.

    A label counts if it occurs among the gold or the predicted labels.
    """
    return _total(_macro, gold, predicted)


@metric(LABEL_SET, sums=Sums(_counts, _of_three(_micro)), family=F1)
def multi_label_micro_f1(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """F1 over all pairs of an example and a label, so that frequent labels count more."""
    return _total(_micro, gold, predicted)


@metric(LABEL_SET, sums=Sums(_equal, ratio_of_sums), family=CORRECT)
def subset_accuracy(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Fraction of examples whose predicted labels are exactly the gold labels."""
    return float(_equal(gold, predicted)[:, 0].mean())
