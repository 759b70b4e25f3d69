"""Metrics of one ranking for each example: how far up the list stands what was looked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headstart.evaluation.metrics import Floats, Sums, metric, plain, same_length

_CUT = 10
"""What stands further down the list counts as not found; ten is what BEIR and MS MARCO report."""


def _found(gold: Any, ranking: Any) -> tuple[list[bool], int]:
    """Return for each place of a ranking whether what stands there is relevant, and how many relevant things there are.

    A gold value is what is relevant, one thing or a list; a thing that a ranking repeats counts at its first place.
    """
    relevant = {*(gold if isinstance(gold, list) else [gold])}
    places = dict.fromkeys(ranking if isinstance(ranking, list) else [ranking])
    return [thing in relevant for thing in places][:_CUT], len(relevant)


def _reciprocal_rank(gold: Any, ranking: Any) -> float:
    hits, _ = _found(gold, ranking)
    return 1 / (1 + hits.index(True)) if True in hits else 0.0


def _normalised_gain(gold: Any, ranking: Any) -> float:
    hits, relevant = _found(gold, ranking)
    worth = 1 / np.log2(np.arange(2, 2 + _CUT))
    return float(worth[: len(hits)][np.asarray(hits, dtype=bool)].sum() / worth[:relevant].sum())


def _of_examples(value: Callable[[Any, Any], float]) -> Callable[[Sequence[Any], Sequence[Any]], Floats]:
    def values(gold: Sequence[Any], predicted: Sequence[Any]) -> Floats:
        pair = [plain(gold), plain(predicted)]
        same_length(pair)
        return np.array([[value(*both), 1.0] for both in zip(*pair, strict=True)])

    return values


def _mean(sums: Floats) -> Floats:
    mean: Floats = sums[:, 0] / sums[:, 1]
    return mean


@metric("ranking", sums=Sums(_of_examples(_normalised_gain), _mean))
def ndcg_at_10(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Discounted gain of the first ten places over that of the best order; 1.0 where all that is relevant leads.

    Paper: Järvelin & Kekäläinen 2002
    """
    return float(_of_examples(_normalised_gain)(gold, predicted)[:, 0].mean())


@metric("ranking", sums=Sums(_of_examples(_reciprocal_rank), _mean))
def mrr_at_10(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Mean over the examples of 1 / the place of the first relevant thing, 0.0 where it is not among the first ten.

    Paper: Voorhees 1999, TREC-8
    """
    return float(_of_examples(_reciprocal_rank)(gold, predicted)[:, 0].mean())
