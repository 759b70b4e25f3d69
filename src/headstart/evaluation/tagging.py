"""Metrics for a list of labels per example: tags of words, and the spans that tags encode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headstart.core.errors import DataError
from headstart.evaluation.labels import ratio_of_sums
from headstart.evaluation.metrics import CORRECT, F1, Floats, Sums, metric, plain, same_length


def _pairs(gold: Sequence[Any], predicted: Sequence[Any]) -> list[tuple[list[Any], list[Any]]]:
    """Return the gold and predicted list of each example, which must be of one length."""
    rows = [plain(gold), plain(predicted)]
    same_length(rows)
    pairs = [(list(tags), list(predicted_tags)) for tags, predicted_tags in zip(*rows, strict=True)]
    for row, (tags, predicted_tags) in enumerate(pairs):
        if len(tags) != len(predicted_tags):
            raise DataError(
                f"example {row} has {len(tags)} gold tags and {len(predicted_tags)} predicted tags",
                allowed="Each gold tag needs one predicted tag",
            )
    return pairs


def _hits(gold: Sequence[Any], predicted: Sequence[Any]) -> Floats:
    """Return for each example the number of correct tags, and of all tags."""
    pairs = _pairs(gold, predicted)
    return np.array([[sum(map(_same, *pair)), len(pair[0])] for pair in pairs], dtype=np.float64)


def _same(tag: Any, predicted: Any) -> bool:
    return bool(tag == predicted)


def _spans(gold: Sequence[Any], predicted: Sequence[Any]) -> Floats:
    """Return for each example the number of correct, gold and predicted spans, as seqeval extracts them."""
    from seqeval.metrics.sequence_labeling import get_entities

    counts = []
    for pair in _pairs(gold, predicted):
        gold_spans, predicted_spans = (set(get_entities(tags)) for tags in pair)
        counts.append([len(gold_spans & predicted_spans), len(gold_spans), len(predicted_spans)])
    return np.array(counts, dtype=np.float64)


def _f1(sums: Floats) -> Floats:
    hits, gold, predicted = sums.T
    # Without any span, gold or predicted, there is no error.
    return np.divide(2 * hits, gold + predicted, out=np.ones_like(hits), where=gold + predicted > 0)


@metric("labels", sums=Sums(_hits, ratio_of_sums), family=CORRECT)
def token_accuracy(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Fraction of all tokens of all examples whose tag is the gold tag."""
    return float(ratio_of_sums(_hits(gold, predicted).sum(axis=0, keepdims=True))[0])


@metric("labels", sums=Sums(_spans, _f1), family=F1)
def seqeval_f1(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """F1 of whole spans (type and both ends), as seqeval extracts them from B-, I- and O tags.

    A span that does not begin with B- is extracted as in the CoNLL script. The value is 1.0 where there is neither a
    gold nor a predicted span; seqeval itself returns 0.
    Paper: Tjong Kim Sang & De Meulder 2003, CoNLL-2003; Nakayama 2018, seqeval
    """
    from seqeval.metrics import f1_score

    pairs = _pairs(gold, predicted)
    if not _spans(gold, predicted).any():
        return 1.0
    return float(f1_score([tags for tags, _ in pairs], [tags for _, tags in pairs], zero_division=0))
