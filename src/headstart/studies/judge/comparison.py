"""Two sides of a contrast on the same seeds and the same examples: how far apart, and how sure that is.

Two questions are asked of every difference, and both must be answered with yes: would other seeds show it (sign flips
over seeds), and would other seeds and other test examples together (a paired bootstrap over both)? The first is exact
for any number of seeds and blind to the choice of examples; the second sees both, and is too sure of itself with few
seeds. Their larger p-value is right where either alone is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headstart.core import config, randomness
from headstart.evaluation.metrics import Floats, about
from headstart.evaluation.resampling import draw, resampled
from headstart.evaluation.significance import permutation_over_seeds
from headstart.studies.grid import Context
from headstart.studies.judge.results import CellScore, Results

SAMPLES = 2000
_FEWEST = 2
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Pair:
    """Differences of two sides by seed, in contexts that share their chance; positive: the first is better."""

    group: str
    differences: Mapping[int, float]
    resampled: Mapping[int, Floats]
    """The same on resamples of the test examples, one row for each seed."""


@dataclass(frozen=True)
class Comparison:
    """A difference over seeds and examples."""

    difference: float
    low: float
    high: float
    """The middle 95 % of the differences over resampled seeds and examples."""
    sd: float | None
    """Standard deviation over the units."""
    units: int
    """Independent draws: seeds, once for each set of training rows."""
    groups: int
    examples_error: float
    """Standard error that the choice of test examples brings, however many seeds are averaged."""
    residual: float
    """What the choice of examples adds to a single unit, and averages out over them; `sd` holds it already."""
    p_seeds: tuple[float, float]
    """One-sided p-values of the sign flips: that the first is not better, that it is not worse."""
    p_examples: tuple[float, float]

    @property
    def effect(self) -> float | None:
        """Return the difference in standard deviations over the units, corrected for few of them (Hedges 1981).

        None where there is none to speak of: of two units the correction leaves nothing, of equal ones no deviation.
        """
        if not self.sd or self.units <= _FEWEST:
            return None
        return self.difference / self.sd * (1 - 3 / (4 * (self.units - 1) - 1))

    @property
    def p_better(self) -> float:
        """Return the p-value of the claim that the first side is better."""
        return max(self.p_seeds[0], self.p_examples[0])

    @property
    def p_worse(self) -> float:
        """Return the p-value of the claim that the first side is worse."""
        return max(self.p_seeds[1], self.p_examples[1])

    @property
    def p_value(self) -> float:
        """Return the two-sided p-value."""
        return min(1.0, 2 * min(self.p_better, self.p_worse))


class Resamples:
    """Scores of outcomes on resamples of their test examples, each computed once."""

    def __init__(self, samples: int = SAMPLES) -> None:
        """Hold nothing yet."""
        self.samples = samples
        self._known: dict[tuple[str, str], Floats] = {}

    def prepare(self, results: Results) -> None:
        """Compute the scores of all outcomes, one test set at a time: a draw of examples serves all of them."""
        together: dict[Context, list[CellScore]] = {}
        for (_, context), runs in results.outcomes.items():
            together.setdefault(context, []).extend(runs.values())
        for outcomes in together.values():
            self.of(outcomes)

    def of(self, outcomes: Sequence[CellScore], metric: str = "score") -> list[Floats]:
        """Return for each outcome its metric on every resample; examples are drawn alike for all of one test set."""
        missing = {o.node: o for o in outcomes if (o.node, metric) not in self._known}
        named = {node: o.metric if metric == "score" else metric for node, o in missing.items()}
        for name in dict.fromkeys(named.values()):
            for alike in _by_gold([o for node, o in missing.items() if named[node] == name]):
                gold = alike[0].gold
                values = resampled(name, gold, [o.predictions for o in alike])
                drawn = draw(len(gold), self.samples, seed=int(config.fingerprint(gold, 8), 16))
                rows = [[value(counts) for value in values] for counts in drawn]
                for place, outcome in enumerate(alike):
                    self._known[outcome.node, metric] = np.concatenate([row[place] for row in rows])
        return [self._known[o.node, metric] for o in outcomes]


def _by_gold(outcomes: Sequence[CellScore]) -> list[list[CellScore]]:
    """Put those together that answer the same test rows: where a compared axis chooses them, they differ."""
    found: list[list[CellScore]] = []
    for one in outcomes:
        alike = next((group for group in found if group[0].gold == one.gold), None)
        if alike is None:
            found.append([one])
        else:
            alike.append(one)
    return found


def pair(
    better: Sequence[Mapping[int, CellScore]], worse: Sequence[Mapping[int, CellScore]], resamples: Resamples,
    metric: str = "score",
) -> Pair | None:  # fmt: skip
    """Pair two sides in one context, each the mean of one or more systems.

    None where they share no seed, or where the task there does not count the metric.
    """
    runs_of_all = [*better, *worse]
    seeds = sorted(set.intersection(*(set(runs) for runs in runs_of_all)))
    if not seeds or not all(metric in ("score", *runs[seed].test) for runs in runs_of_all for seed in seeds):
        return None
    differences, drawn = {}, {}
    some = better[0][seeds[0]]
    sign = -1 if about(some.metric if metric == "score" else metric).lower_is_better else 1
    for seed in seeds:
        sides = [[runs[seed] for runs in side] for side in (better, worse)]
        means = [np.mean([_value(o, metric) for o in side]) for side in sides]
        differences[seed] = float(sign * (means[0] - means[1]))
        rows = [np.mean(resamples.of(side, metric), axis=0) for side in sides]
        drawn[seed] = sign * (rows[0] - rows[1])
    return Pair(some.group, differences, drawn)


def _value(outcome: CellScore, metric: str) -> float:
    return outcome.score if metric == "score" else float(outcome.test[metric])


def compare(pairs: Sequence[Pair]) -> Comparison | None:
    """Compare over all contexts; None where there is nothing to compare.

    Contexts that draw from the same training rows share chance, and are averaged first; what is left are units that
    can be taken for independent.
    """
    merged = [found for found in map(_merged, _by_group(pairs).values()) if found.differences]
    if not merged:
        return None
    units = np.concatenate([list(one.differences.values()) for one in merged])
    observed = float(units.mean())
    free = np.zeros(())
    of_all = of_each = 0.0
    for one in merged:
        rows = np.stack(list(one.resampled.values()))
        weight = len(rows) / len(units)
        common, own = _parts(rows)
        of_all, of_each = of_all + weight**2 * common, of_each + weight * own
        drawn = _seed_weights(len(rows), rows.shape[1], one.group)
        seeds = np.array(list(one.differences.values()))
        # How far other examples would lead astray, and how far other seeds would: drawn apart, and added.
        free = free + weight * (rows.mean(axis=0) + seeds @ drawn - seeds.mean())
    low, high = np.quantile(free, [0.025, 0.975])
    strays = free - observed
    above, below = ((int(np.sum(sign * strays >= sign * observed - 1e-12)) + 1) / (len(free) + 1) for sign in (1, -1))
    two_sided = permutation_over_seeds(units.tolist(), [0.0] * len(units))
    nearer, further = two_sided / 2, 1 - two_sided / 2
    by_seeds = (nearer, further) if observed > 0 else (further, nearer) if observed < 0 else (1.0, 1.0)
    sd = float(units.std(ddof=1)) if len(units) > 1 else None
    if sd is not None and sd <= _ROUNDING * max(1.0, abs(observed)):
        sd = 0.0
    return Comparison(
        observed, float(low), float(high), sd, len(units), len(merged), of_all**0.5, of_each**0.5, by_seeds,
        (above, below),
    )  # fmt: skip


def _parts(rows: Floats) -> tuple[float, float]:
    """Split the variance that resampled examples bring: what all seeds share, and what each has for itself."""
    seeds = len(rows)
    of_mean, of_one = float(rows.mean(axis=0).var()), float(rows.var(axis=1).mean())
    if seeds == 1:
        return of_mean, 0.0
    own = max(0.0, (of_one - of_mean) * seeds / (seeds - 1))
    return max(0.0, of_mean - own / seeds), own


def _by_group(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    found: dict[str, list[Pair]] = {}
    for one in pairs:
        found.setdefault(one.group, []).append(one)
    return found


def _merged(pairs: Sequence[Pair]) -> Pair:
    """Average contexts that share chance, over the seeds that all of them have."""
    seeds = sorted(set.intersection(*(set(one.differences) for one in pairs)))
    return Pair(
        pairs[0].group,
        {seed: float(np.mean([one.differences[seed] for one in pairs])) for seed in seeds},
        {seed: np.mean([one.resampled[seed] for one in pairs], axis=0) for seed in seeds},
    )


def _seed_weights(seeds: int, samples: int, group: str) -> Floats:
    """Return how much each seed counts in each resample: as often as it was drawn, over the number of draws."""
    drawn = randomness.generator(0, 0, seeds, f"seeds of {group}").integers(0, seeds, size=(seeds, samples))
    return np.stack([(drawn == seed).sum(axis=0) for seed in range(seeds)]) / seeds
