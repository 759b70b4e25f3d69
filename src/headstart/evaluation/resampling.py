"""A metric on thousands of bootstrap resamples at once, from how often each resample drew each example.

A resample of n examples is a row of n counts. Accuracy, F1 and Matthews need sums of counts per label, Pearson
needs weighted moments, Spearman the weighted mid-ranks; all are products of the count matrix with something
fixed, so no metric is called 2,000 times. Metrics of plugins are, since nothing is known of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from headstart.core import randomness, registry
from headstart.core.contracts import Bools
from headstart.evaluation.metrics import Floats, Ints, label_codes, numbers

Resampled = Callable[[Floats], Floats]
"""Counts of shape (resamples, examples) in, one value of the metric per resample out."""

_CELLS_PER_CHUNK = 1_000_000
_FLAT = 1e-12
"""A variance below this, of values scaled to variance 1, is a constant with rounding errors."""


def draw(examples: int, samples: int, seed: int) -> Iterator[Floats]:
    """Yield the counts of `samples` resamples in chunks of bounded memory."""
    rng = randomness.generator(seed, 0, 0, "bootstrap")
    rows = max(1, _CELLS_PER_CHUNK // examples)
    for start in range(0, samples, rows):
        size = min(rows, samples - start)
        picks = rng.integers(0, examples, size=(size, examples)) + np.arange(size)[:, None] * examples
        counts = np.bincount(picks.ravel(), minlength=size * examples)
        yield counts.reshape(size, examples).astype(np.float64)


def resampled(metric: str, gold: Sequence[Any], runs: Sequence[Sequence[Any]]) -> list[Resampled]:
    """Return for each run of predictions a function that gives the metric on a chunk of resamples."""
    if metric in ("accuracy", "f1", "macro_f1", "matthews"):
        codes, classes = label_codes(gold, *runs)
        if metric == "f1":
            for run in runs:
                registry.resolve("metrics", metric)(gold, run)  # refuses more than two labels, by its own words
        return [_over_labels(metric, codes[0], run, len(classes)) for run in codes[1:]]
    if metric == "pearson":
        scaled = [_scale(values) for values in numbers(gold, *runs)]
        return [_pearson(scaled[0], run) for run in scaled[1:]]
    if metric == "spearman":
        values = numbers(gold, *runs)
        gold_ranks = _ranker(values[0])
        return [_spearman(gold_ranks, _ranker(run)) for run in values[1:]]
    function = registry.resolve("metrics", metric)
    return [_any_metric(function, gold, run) for run in runs]


def _over_labels(metric: str, gold: Ints, predicted: Ints, labels: int) -> Resampled:
    hits = (gold == predicted).astype(np.float64)
    if metric == "accuracy":
        return lambda counts: counts @ hits / counts.sum(axis=1)
    n = len(gold)
    gold_is = sparse.csr_matrix((np.ones(n), (np.arange(n), gold)), shape=(n, labels))
    predicted_is = sparse.csr_matrix((np.ones(n), (np.arange(n), predicted)), shape=(n, labels))
    hit_is = sparse.csr_matrix((hits, (np.arange(n), gold)), shape=(n, labels))
    combine = {"f1": _f1, "macro_f1": _macro_f1, "matthews": _matthews}[metric]
    return lambda counts: combine(counts @ hit_is, counts @ gold_is, counts @ predicted_is)


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


def _scale(values: Floats) -> Floats:
    spread = values.std()
    return (values - values.mean()) / spread if spread > _FLAT * max(1.0, float(np.abs(values).max())) else values * 0.0


def _pearson(gold: Floats, predicted: Floats) -> Resampled:
    products = np.column_stack([gold, predicted, gold * gold, predicted * predicted, gold * predicted])

    def value(counts: Floats) -> Floats:
        g, p, gg, pp, gp = (counts @ products).T / counts.sum(axis=1)
        return _ratio(gp - g * p, gg - g * g, pp - p * p)

    return value


def _spearman(gold_ranks: Resampled, predicted_ranks: Resampled) -> Resampled:

    def value(counts: Floats) -> Floats:
        # Mid-ranks of n drawn examples average (n + 1) / 2 exactly, ties or not; scaled, they lie in [-1/2, 1/2].
        total = counts.sum(axis=1, keepdims=True)
        g, p = ((rank(counts) - (total + 1) / 2) / total for rank in (gold_ranks, predicted_ranks))
        covariance, g_spread, p_spread = (np.einsum("ij,ij,ij->i", counts, x, y) for x, y in ((g, p), (g, g), (p, p)))
        return _ratio(covariance, g_spread, p_spread)

    return value


def _ranker(values: Floats) -> Resampled:
    """Return a function from counts to each example's mid-rank within its resample; it remembers its last answer."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    group = np.empty(len(values), dtype=np.int64)
    group[order] = np.repeat(np.arange(len(starts)), np.diff(np.r_[starts, len(values)]))

    last: list[tuple[Floats, Floats]] = []

    def ranks(counts: Floats) -> Floats:
        if last and last[0][0] is counts:
            return last[0][1]
        per_group = np.add.reduceat(counts[:, order], starts, axis=1)
        middle = np.cumsum(per_group, axis=1) - (per_group - 1) / 2
        last[:] = [(counts, np.take(middle, group, axis=1))]
        return last[0][1]

    return ranks


def _ratio(covariance: Floats, left: Floats, right: Floats) -> Floats:
    defined = (left > _FLAT) & (right > _FLAT)
    scale = np.sqrt(np.where(defined, left * right, 1.0))
    return np.where(defined, covariance / scale, 0.0)


def _any_metric(function: Callable[..., float], gold: Sequence[Any], predicted: Sequence[Any]) -> Resampled:
    def value(counts: Floats) -> Floats:
        rows = (np.repeat(np.arange(len(gold)), row.astype(np.int64)).tolist() for row in counts)
        return np.array([float(function([gold[i] for i in row], [predicted[i] for i in row])) for row in rows])

    return value
