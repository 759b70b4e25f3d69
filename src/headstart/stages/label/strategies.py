"""Which rows to label next: arithmetic on the probabilities and the vectors of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from headstart.evaluation.metrics import Floats

Strategy = Literal["diverse", "margin", "random"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
_CANDIDATES = 10
"""`diverse` chooses among this many times as many rows as it returns."""
_MOST_CANDIDATES = 20_000
VectorsOf = Callable[[Sequence[int]], Floats]
"""Returns a vector for each of some rows."""


def margin(scores: Mapping[Any, float], threshold: float | None = None) -> float:
    """Return how sure a model is of a row: 0 if it could as well have decided otherwise.

    Args:
        scores: the probability of each label.
        threshold: for several labels per row, the probability above which a label is predicted. The margin is then
            the distance of the nearest probability from it. Otherwise it is that between the two likeliest labels.
    """
    values = np.sort(np.fromiter(scores.values(), dtype=float))
    if threshold is not None:
        return float(np.abs(values - threshold).min())
    return float(values[-1] - values[-2]) if len(values) > 1 else 1.0


def choose(strategy: Strategy, margins: Floats, number: int, vectors_of: VectorsOf, seed: int = 0) -> list[int]:
    """Return the indices of the rows to label.

    Algorithm:
        `random` draws rows. `margin` takes the rows with the smallest margins ("breaking ties"). `diverse` takes the
        ten times as many rows with the smallest margins, divides them into `number` clusters by k-means on their
        vectors, and takes the row with the smallest margin of each cluster. So no two rows are chosen because of the
        same doubt.

    Paper: Scheffer et al. 2001, Active Hidden Markov Models for Information Extraction, section 3 (margin);
        Zhdanov 2019, Diverse mini-batch Active Learning, section 3 (clusters of uncertain rows)

    Args:
        strategy: how to choose.
        margins: the margin of each row.
        number: how many rows to choose.
        vectors_of: called once with the candidates of `diverse`.
        seed: of the drawing and of the clusters.
    """
    if strategy == "random":
        drawn = np.random.default_rng(seed).permutation(len(margins))[:number]
        return [int(row) for row in drawn]
    order = np.argsort(margins, kind="stable")
    if strategy == "margin" or number == len(margins):
        return [int(row) for row in order[:number]]
    candidates = order[: max(number, min(_CANDIDATES * number, _MOST_CANDIDATES))]
    return _one_per_cluster(candidates, margins, vectors_of([int(row) for row in candidates]), number, seed)


def _one_per_cluster(candidates: Any, margins: Floats, vectors: Floats, number: int, seed: int) -> list[int]:
    """Return the candidate with the smallest margin of each cluster, the smallest margin first."""
    from sklearn.cluster import KMeans

    directions = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    # Equal vectors make fewer clusters than were asked for.
    distinct = len(np.unique(directions, axis=0))
    clusters = KMeans(min(number, distinct), n_init=1, random_state=seed).fit_predict(directions)
    chosen: dict[int, int] = {}
    for row, cluster in zip(candidates, clusters, strict=True):
        chosen.setdefault(int(cluster), int(row))
    taken = list(chosen.values())
    rest = [int(row) for row in candidates if int(row) not in set(taken)]
    return sorted([*taken, *rest[: number - len(taken)]], key=lambda row: (margins[row], row))
