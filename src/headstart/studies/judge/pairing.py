"""Pair the two sides of a contrast, seed by seed, on resamples of their test examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from headstart.evaluation.comparison import SAMPLES, PairedScores, count_discordant, resampling_seed
from headstart.evaluation.metrics import Floats
from headstart.evaluation.resampling import Resampled, resampled, scores_on_resamples
from headstart.studies.grid import Context
from headstart.studies.judge.results import SCORE, CellScore, Results


class Resamples:
    """Scores of cells on resamples of their test examples, each computed once."""

    def __init__(self, samples: int = SAMPLES) -> None:
        """Start with an empty cache."""
        self.samples = samples
        self._cache: dict[tuple[str, str], Floats] = {}

    def prepare(self, results: Results) -> None:
        """Compute the scores of all cells, one test set at a time, so that one draw of examples serves all of them."""
        by_context: dict[Context, list[CellScore]] = {}
        for (_, context), runs in results.scores.items():
            by_context.setdefault(context, []).extend(runs.values())
        for cells in by_context.values():
            self.of(cells)

    def of(self, cells: Sequence[CellScore], metric: str = SCORE) -> list[Floats]:
        """Return for each cell its metric on every resample; cells of one test set share the resamples."""
        keys = [_key(cell, metric) for cell in cells]
        missing = {key: cell for key, cell in zip(keys, cells, strict=True) if key not in self._cache}
        names = {key: metric_of(cell, metric) for key, cell in missing.items()}
        for name in dict.fromkeys(names.values()):
            for group in _by_gold([cell for key, cell in missing.items() if names[key] == name]):
                drawn = self._draw(group, name)
                self._cache |= {_key(cell, metric): values for cell, values in zip(group, drawn, strict=True)}
        return [self._cache[key] for key in keys]

    def _draw(self, group: Sequence[CellScore], name: str) -> Sequence[Floats]:
        """Return the scores of cells with the same examples; those of a figure without items do not vary."""
        gold = group[0].gold
        if not gold:
            return [np.full(self.samples, cell.score) for cell in group]
        # Seeds of a method that trains nothing predict the same.
        keys = [repr(cell.predictions) for cell in group]
        distinct = {key: cell.predictions for key, cell in zip(keys, group, strict=True)}
        runs = list(distinct.values())
        functions = resampled(name, gold, runs) if group[0].figure is None else [_mean_of(run) for run in runs]
        # Cells that were finished by earlier versions have no design.
        design = next((cell.design for cell in group if cell.design is not None), None)
        scores = scores_on_resamples(functions, len(gold), self.samples, resampling_seed(gold), design)
        score_of = dict(zip(distinct, scores, strict=True))
        return [score_of[key] for key in keys]


def _key(cell: CellScore, metric: str) -> tuple[str, str]:
    """Return the key of a cell in the cache; one cell of a probe has several figures, on different items."""
    return cell.node, metric if cell.figure is None else f"{cell.metric} {len(cell.gold)} {cell.figure.family}"


def _mean_of(values: Sequence[float]) -> Resampled:
    array = np.asarray(values, dtype=np.float64)
    return lambda counts: counts @ array / counts.sum(axis=1)


def metric_of(cell: CellScore, metric: str) -> str:
    """Return the metric that a contrast's name refers to in a cell: `score` is the task's first metric."""
    return cell.metric if metric == SCORE else metric


def _by_gold(cells: Sequence[CellScore]) -> list[list[CellScore]]:
    """Group cells by their test rows, which differ where a compared axis, such as a language, selects them."""
    groups: list[list[CellScore]] = []
    for cell in cells:
        group = next((group for group in groups if group[0].gold == cell.gold), None)
        if group is None:
            groups.append([cell])
        else:
            group.append(cell)
    return groups


def pair(
    better: Sequence[Mapping[int, CellScore]], worse: Sequence[Mapping[int, CellScore]], resamples: Resamples,
    metric: str = SCORE,
) -> PairedScores | None:  # fmt: skip
    """Pair two sides in one context, each side the mean of one or more systems.

    Returns None where they share no seed, or where the task in this context does not report the metric.
    """
    systems = [*better, *worse]
    seeds = sorted(set.intersection(*(set(runs) for runs in systems)))
    if not seeds or not all(metric in (SCORE, *runs[seed].test) for runs in systems for seed in seeds):
        return None
    differences, drawn = {}, {}
    first = better[0][seeds[0]]
    sign = -1 if first.about_metric(metric).lower_is_better else 1
    for seed in seeds:
        sides = [[runs[seed] for runs in side] for side in (better, worse)]
        means = [np.mean([cell.test[metric_of(cell, metric)] for cell in side]) for side in sides]
        differences[seed] = float(sign * (means[0] - means[1]))
        rows = [np.mean(resamples.of(side, metric), axis=0) for side in sides]
        drawn[seed] = sign * (rows[0] - rows[1])
    # A figure without items has no examples that could limit the p-value.
    discordant = _discordant(better, worse, seeds) if first.gold else math.inf
    return PairedScores(first.group, differences, drawn, len(first.gold), discordant)


def difference_of_leads(first: PairedScores, second: PairedScores) -> PairedScores:
    """Return how much larger the differences are in one context than in another, for the seeds of both.

    Contexts of one test set share their resamples, so what its examples have in common cancels.
    """
    seeds = sorted(first.differences.keys() & second.differences.keys())
    return PairedScores(
        first.group,
        {seed: first.differences[seed] - second.differences[seed] for seed in seeds},
        {seed: first.resampled[seed] - second.resampled[seed] for seed in seeds},
        min(first.examples, second.examples),
        max(first.discordant, second.discordant),
    )


def _discordant(
    better: Sequence[Mapping[int, CellScore]], worse: Sequence[Mapping[int, CellScore]], seeds: Sequence[int]
) -> int:
    """Count the test examples that any two runs of a seed, one of each side, answer differently."""
    answers = [
        (a[seed].predictions, b[seed].predictions) for a in better for b in worse for seed in seeds
    ]  # fmt: skip
    return count_discordant(answers, min(len(side) for both in answers for side in both))
