"""Compute a metric on thousands of bootstrap resamples at once, from how often each resample drew each example.

A resample of n examples is a row of n counts. Most metrics are functions of sums over the examples (`Sums`), which one
product of the count matrix with a fixed matrix computes; Spearman needs weighted mid-ranks. Any other metric, such as a
plugin's, is called once for every resample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headstart.core import randomness, registry
from headstart.evaluation.correlations import correlation_of, numbers
from headstart.evaluation.metrics import Floats, Sums, about

Resampled = Callable[[Floats], Floats]
"""Counts of shape (resamples, examples) in, one value of the metric per resample out."""
_Ranks = Callable[[Floats], tuple[Floats, Floats]]

_CELLS_PER_CHUNK = 60_000
"""Counts that are drawn together: few enough to stay in a processor's cache."""
_CELLS_PER_CROSSED_CHUNK = 1_000_000
"""The same for crossed designs, whose draws depend on this number: another one would change published intervals."""


@dataclass(frozen=True)
class CrossedDesign:
    """The row and the column of each value in a table whose rows and columns are drawn, each as a whole.

    Values of a row, or of a column, are not independent of each other, such as those of one template. Cells may be
    missing.
    """

    rows: Sequence[str]
    columns: Sequence[str]

    def at(self, indices: Iterable[int]) -> CrossedDesign:
        """Return the rows and columns of some of the values."""
        kept = list(indices)
        return CrossedDesign([self.rows[i] for i in kept], [self.columns[i] for i in kept])


def draw(examples: int, samples: int, seed: int) -> Iterator[Floats]:
    """Yield the counts of `samples` resamples in chunks of bounded memory."""
    rng = randomness.generator(seed, 0, 0, "bootstrap")
    rows = max(1, _CELLS_PER_CHUNK // examples)
    for start in range(0, samples, rows):
        size = min(rows, samples - start)
        picks = rng.integers(0, examples, size=(size, examples)) + np.arange(size)[:, None] * examples
        counts = np.bincount(picks.ravel(), minlength=size * examples)
        yield counts.reshape(size, examples).astype(np.float64)


def draw_crossed(design: CrossedDesign, samples: int, seed: int) -> Iterator[Floats]:
    """Yield how often each value of a table is drawn, in chunks of bounded memory: rows and columns independently.

    A resample without any value, which a table with missing cells can have, is drawn again.
    """
    rng = np.random.default_rng(seed)
    indices = [np.unique(names, return_inverse=True)[1] for names in (design.rows, design.columns)]
    chunk, missing = max(1, _CELLS_PER_CROSSED_CHUNK // len(design.rows)), samples
    while missing:
        size = min(chunk, missing)
        counts = np.ones((size, len(design.rows)))
        for index in indices:
            levels = int(index.max()) + 1
            counts *= rng.multinomial(levels, np.full(levels, 1 / levels), size=size)[:, index]
        counts = counts[counts.any(axis=1)]
        missing -= len(counts)
        yield counts


def resampled(metric: str, gold: Sequence[Any], runs: Sequence[Sequence[Any]]) -> list[Resampled]:
    """Return for each run of predictions a function that computes the metric on a chunk of resamples."""
    function = registry.resolve("metrics", metric)
    known = about(metric)
    if metric == "spearman":
        values = numbers(gold, *runs)
        gold_ranks = _centered_ranks(values[0])
        return [_spearman(gold_ranks, _centered_ranks(run)) for run in values[1:]]
    if known.sums is not None:
        return [_of_sums(known.sums, gold, run) for run in runs]
    return [_any_metric(function, gold, run) for run in runs]


def scores_on_resamples(
    functions: Sequence[Resampled], examples: int, samples: int, seed: int, design: CrossedDesign | None = None
) -> list[Floats]:
    """Return for each function its values on the same `samples` resamples of the examples, each of shape (samples,).

    Examples are drawn independently of each other, or by the rows and columns of a design.
    """
    drawn = draw(examples, samples, seed) if design is None else draw_crossed(design, samples, seed)
    chunks = [[function(counts) for function in functions] for counts in drawn]
    return [np.concatenate([chunk[i] for chunk in chunks]) for i in range(len(functions))]


def _of_sums(sums: Sums, gold: Sequence[Any], predicted: Sequence[Any]) -> Resampled:
    of_examples = sums.of_examples(gold, predicted)
    return lambda counts: sums.value(np.asarray(counts @ of_examples))


def _spearman(gold_ranks: _Ranks, predicted_ranks: _Ranks) -> Resampled:

    def value(counts: Floats) -> Floats:
        (g, g_spread), (p, p_spread) = gold_ranks(counts), predicted_ranks(counts)
        return correlation_of(np.einsum("ij,ij,ij->i", counts, g, p), g_spread, p_spread)

    return value


def _centered_ranks(values: Floats) -> _Ranks:
    """Return a function from counts to each example's mid-rank within its resample, and the spread of the ranks.

    Mid-ranks of n drawn examples average (n + 1) / 2 exactly, ties or not; scaled, they are in [-1/2, 1/2]. The
    function keeps its last result, because the gold values have the same ranks beside every run.
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    has_ties = len(starts) < len(values)
    group = np.empty(len(values), dtype=np.int64)
    group[order] = np.repeat(np.arange(len(starts)), np.diff(np.r_[starts, len(values)]))
    last: list[tuple[Floats, tuple[Floats, Floats]]] = []

    def ranks(counts: Floats) -> tuple[Floats, Floats]:
        if last and last[0][0] is counts:
            return last[0][1]
        per_group = np.take(counts, order, axis=1)
        if has_ties:
            per_group = np.add.reduceat(per_group, starts, axis=1)
        middle = np.cumsum(per_group, axis=1)
        total = middle[:, -1:].copy()
        middle -= (per_group - 1) / 2
        middle -= (total + 1) / 2
        middle /= total
        spread = np.einsum("ij,ij,ij->i", per_group, middle, middle)
        last[:] = [(counts, (np.take(middle, group, axis=1), spread))]
        return last[0][1]

    return ranks


def _any_metric(function: Callable[..., float], gold: Sequence[Any], predicted: Sequence[Any]) -> Resampled:
    def value(counts: Floats) -> Floats:
        rows = (np.repeat(np.arange(len(gold)), row.astype(np.int64)).tolist() for row in counts)
        return np.array([float(function([gold[i] for i in row], [predicted[i] for i in row])) for row in rows])

    return value
