"""Metrics for one ranking per example: nDCG and mean reciprocal rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headstart.evaluation.metrics import Floats, Sums, metric, plain, same_length

_CUT = 10
"""Lower ranks count as not found; BEIR and MS MARCO report ten."""


def _relevance(gold: Any, ranking: Any) -> tuple[list[bool], int]:
    """Return whether the item at each rank is relevant, and how many items are relevant in total.

    A gold value is one relevant item or a list of them. An item that a ranking repeats counts at its first rank.
    """
    relevant = {*(gold if isinstance(gold, list) else [gold])}
    items = dict.fromkeys(ranking if isinstance(ranking, list) else [ranking])
    return [item in relevant for item in items][:_CUT], len(relevant)


def _reciprocal_rank(gold: Any, ranking: Any) -> float:
    hits, _ = _relevance(gold, ranking)
    return 1 / (1 + hits.index(True)) if True in hits else 0.0


def _normalized_gain(gold: Any, ranking: Any) -> float:
    hits, relevant = _relevance(gold, ranking)
    discounts = 1 / np.log2(np.arange(2, 2 + _CUT))
    return float(discounts[: len(hits)][np.asarray(hits, dtype=bool)].sum() / discounts[:relevant].sum())


def _of_examples(value: Callable[[Any, Any], float]) -> Callable[[Sequence[Any], Sequence[Any]], Floats]:
    def values(gold: Sequence[Any], predicted: Sequence[Any]) -> Floats:
        pair = [plain(gold), plain(predicted)]
        same_length(pair)
        return np.array([[value(*both), 1.0] for both in zip(*pair, strict=True)])

    return values


def _mean(sums: Floats) -> Floats:
    mean: Floats = sums[:, 0] / sums[:, 1]
    return mean


@metric("ranking", sums=Sums(_of_examples(_normalized_gain), _mean))
def ndcg_at_10(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Discounted gain of the first ten ranks over that of the best order; 1.0 where all relevant items come first.

    Paper: Järvelin & Kekäläinen 2002
    """
    return float(_of_examples(_normalized_gain)(gold, predicted)[:, 0].mean())


@metric("ranking", sums=Sums(_of_examples(_reciprocal_rank), _mean))
def mrr_at_10(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Mean over the examples of 1 / rank of the first relevant item, 0.0 where it is not among the first ten.

    Paper: Voorhees 1999, TREC-8
    """
    return float(_of_examples(_reciprocal_rank)(gold, predicted)[:, 0].mean())
