"""Metrics of a list of labels for each example: tags of words, and the spans that tags spell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headstart.core.errors import DataError
from headstart.evaluation.labels import ratio_of_sums
from headstart.evaluation.metrics import Floats, Sums, metric, plain, same_length


def _pairs(gold: Sequence[Any], predicted: Sequence[Any]) -> list[tuple[list[Any], list[Any]]]:
    """Return the two lists of each example, which must be of one length."""
    rows = [plain(gold), plain(predicted)]
    same_length(rows)
    pairs = [(list(wanted), list(found)) for wanted, found in zip(*rows, strict=True)]
    for row, (wanted, found) in enumerate(pairs):
        if len(wanted) != len(found):
            raise DataError(f"example {row} has {len(wanted)} gold tags and {len(found)} predicted ones")
    return pairs


def _hits(gold: Sequence[Any], predicted: Sequence[Any]) -> Floats:
    """Return for each example the tags that are right, and all."""
    pairs = _pairs(gold, predicted)
    return np.array([[sum(map(_same, *pair)), len(pair[0])] for pair in pairs], dtype=np.float64)


def _same(one: Any, other: Any) -> bool:
    return bool(one == other)


def _spans(gold: Sequence[Any], predicted: Sequence[Any]) -> Floats:
    """Return for each example the spans that are found, gold and predicted, as seqeval reads them."""
    from seqeval.metrics.sequence_labeling import get_entities

    counts = []
    for pair in _pairs(gold, predicted):
        wanted, found = (set(get_entities(tags)) for tags in pair)
        counts.append([len(wanted & found), len(wanted), len(found)])
    return np.array(counts, dtype=np.float64)


def _f1(sums: Floats) -> Floats:
    hits, wanted, found = sums.T
    # Where there is no span, neither gold nor predicted, nothing is wrong.
    return np.divide(2 * hits, wanted + found, out=np.ones_like(hits), where=wanted + found > 0)


@metric("labels", sums=Sums(_hits, ratio_of_sums))
def token_accuracy(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Share of all tokens, whatever their sentence, whose tag is the gold one."""
    return float(ratio_of_sums(_hits(gold, predicted).sum(axis=0, keepdims=True))[0])


@metric("labels", sums=Sums(_spans, _f1))
def seqeval_f1(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """F1 of whole spans, type and both ends, as seqeval reads them out of B-, I- and O tags.

    The tags of a span that does not begin with B- are read as the CoNLL script reads them. It is 1.0 where there is no
    span to find and none is predicted; seqeval itself calls that 0.
    Paper: Tjong Kim Sang & De Meulder 2003, CoNLL-2003; Nakayama 2018, seqeval
    """
    from seqeval.metrics import f1_score

    pairs = _pairs(gold, predicted)
    if not _spans(gold, predicted).any():
        return 1.0
    return float(f1_score([wanted for wanted, _ in pairs], [found for _, found in pairs], zero_division=0))
