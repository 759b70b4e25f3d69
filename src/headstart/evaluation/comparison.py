"""Compare two systems that ran with the same seeds on the same test examples.

Two tests ask whether a difference would be seen again. Sign flips over seeds ask for other seeds; the test is exact for
any number of seeds, and ignores the choice of test examples. A paired bootstrap over seeds and examples asks for other
seeds and other examples together; it sees both, and its p-values are too small with few seeds. The larger of the two
p-values counts: it is valid where either alone is not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from headstart.core import config, randomness
from headstart.core.errors import DataError
from headstart.evaluation.metrics import Floats, about, plain
from headstart.evaluation.resampling import resampled, scores_on_resamples
from headstart.evaluation.significance import LEVEL, permutation_over_seeds, seeds_to_decide, smallest_p

SAMPLES = 2000
"""Resamples of the test examples."""
_FEWEST_FOR_EFFECT = 3
"""Hedges' correction of two units leaves nothing."""
_ROUNDING = 1e-9
_TIE = 1e-12
_MOST_DISCORDANT = 64
"""Counting stops here: 2^-64 is far below the smallest p-value of any bootstrap."""


@dataclass(frozen=True)
class PairedScores:
    """Differences between two systems, one for each seed; positive where the first system is better."""

    group: str
    """Names the training rows, or the test rows where neither side is trained.

    Pairs of one group and seed are not independent, and count as one unit.
    """
    differences: Mapping[int, float]
    resampled: Mapping[int, Floats]
    """Seed → the same difference on each resample of the test examples."""
    examples: int = 0
    discordant: float = math.inf
    """Test examples on which the two systems answer differently; infinite where nothing limits the p-value."""


@dataclass(frozen=True)
class Comparison:
    """The difference between two systems over seeds and examples, and how sure it is."""

    difference: float
    low: float
    high: float
    """The middle 95 % of the differences over resampled seeds and examples."""
    sd: float | None
    """Standard deviation over the units; None for a single unit."""
    units: int
    """Independent paired runs: the seeds, counted once for each set of training rows."""
    groups: int
    """Sets of training rows, or of test rows where neither side is trained."""
    examples_error: float
    """Standard error from the choice of test examples, which more seeds do not reduce."""
    residual: float
    """What the choice of examples adds to a single unit, and averages out over units; `sd` includes it."""
    p_seeds: tuple[float, float]
    """One-sided p-values of the sign flips: for "the first is better", for "the first is worse"."""
    p_examples: tuple[float, float]
    """One-sided p-values of the bootstrap over seeds and examples, in the same order."""
    examples: int = 0

    @property
    def seeds(self) -> int:
        """Return the number of seeds."""
        return self.units // self.groups

    @property
    def effect(self) -> float | None:
        """Return the difference in standard deviations over the units, corrected for few units (Hedges 1981).

        None for fewer than three units, and where the units do not vary.
        """
        if not self.sd or self.units < _FEWEST_FOR_EFFECT:
            return None
        return self.difference / self.sd * (1 - 3 / (4 * (self.units - 1) - 1))

    @property
    def p_better(self) -> float:
        """Return the one-sided p-value for "the first is better": the larger of the two tests'."""
        return max(self.p_seeds[0], self.p_examples[0])

    @property
    def p_worse(self) -> float:
        """Return the one-sided p-value for "the first is worse": the larger of the two tests'."""
        return max(self.p_seeds[1], self.p_examples[1])

    @property
    def p_value(self) -> float:
        """Return the two-sided p-value, by which a difference is decided or not."""
        return _two_sided(self.p_better, self.p_worse)

    @property
    def p_over_seeds(self) -> float:
        """Return the two-sided p-value of the sign flips over seeds."""
        return _two_sided(*self.p_seeds)

    @property
    def p_over_examples(self) -> float:
        """Return the two-sided p-value of the bootstrap over seeds and examples."""
        return _two_sided(*self.p_examples)

    @property
    def is_decided(self) -> bool:
        """Return whether the two-sided p-value reaches the level."""
        return self.p_value <= LEVEL

    @property
    def has_enough_seeds(self) -> bool:
        """Return whether this many paired runs can reach the level at all."""
        return smallest_p(self.units) <= LEVEL

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "difference": self.difference, "low": self.low, "high": self.high, "p_value": self.p_value,
            "seeds": self.seeds, "examples": self.examples, "p_seeds": self.p_over_seeds,
            "p_examples": self.p_over_examples, "effect": self.effect, "decided": self.is_decided,
        }  # fmt: skip


def _two_sided(better: float, worse: float) -> float:
    return min(1.0, 2 * min(better, worse))


def too_few_seeds(units: int) -> str:
    """Return the sentence for a number of paired runs that can never reach the level."""
    runs = f"{units} seed{'s' * (units != 1)}"
    return (
        f"{runs} can never reach p ≤ {LEVEL:g} (smallest possible p is {smallest_p(units):.3g}); "
        f"run at least {seeds_to_decide()}."
    )


def compare_runs(
    gold: Sequence[Any],
    first: Mapping[int, Sequence[Any]],
    second: Mapping[int, Sequence[Any]],
    metric: str,
    samples: int = SAMPLES,
    seed: int | None = None,
) -> Comparison:
    """Compare the predictions of two systems, each given by seed, on one test set.

    A single run on one side, such as a baseline without randomness, is compared with every run of the other side.
    `seed` draws the resamples; by default it derives from the gold values, so that one test set is always resampled
    in the same way. The bootstrap's p-value is never below 1/(samples + 1) one-sided, nor below 1/2^k where the systems
    answer k examples differently: a sign test on k examples could not give a smaller one.
    Paper: Fisher 1935 (sign flips); Efron & Tibshirani 1993, Berg-Kirkpatrick et al. 2012 (paired bootstrap)
    """
    comparison = compare([_pair_runs(gold, first, second, metric, samples, seed)])
    assert comparison is not None
    return comparison


def _pair_runs(
    gold: Sequence[Any], first: Mapping[int, Sequence[Any]], second: Mapping[int, Sequence[Any]], metric: str,
    samples: int, seed: int | None,
) -> PairedScores:  # fmt: skip
    """Pair the runs of two systems by seed."""
    if not first or not second or (len(first) > 1 and len(second) > 1 and first.keys() != second.keys()):
        raise DataError(
            f"system a has {len(first)} runs and system b {len(second)}",
            allowed="A paired comparison needs the same seeds on both sides, or a single run on one side",
        )
    seeds = sorted(first if len(first) >= len(second) else second)
    runs = [side[run] if run in side else next(iter(side.values())) for side in (first, second) for run in seeds]
    functions = resampled(metric, gold, runs)
    observed = np.array([function(np.ones((1, len(gold))))[0] for function in functions])
    drawn = np.stack(
        scores_on_resamples(functions, len(gold), samples, resampling_seed(gold) if seed is None else seed)
    )
    sign = -1 if about(metric).lower_is_better else 1
    n = len(seeds)
    differences, resampled_differences = (sign * (scores[:n] - scores[n:]) for scores in (observed, drawn))
    return PairedScores(
        "",
        dict(zip(seeds, differences.tolist(), strict=True)),
        dict(zip(seeds, resampled_differences, strict=True)),
        len(gold),
        count_discordant(list(zip(runs[:n], runs[n:], strict=True)), len(gold)),
    )


def resampling_seed(gold: Sequence[Any]) -> int:
    """Return the seed that resamples of a test set are drawn with: equal gold values give equal resamples."""
    return int(config.fingerprint(plain(gold), 8), 16)


def count_discordant(answers: Sequence[tuple[Sequence[Any], Sequence[Any]]], examples: int) -> int:
    """Return on how many examples any of the pairs of runs answers differently; counting stops at 64."""
    differing = (i for i in range(examples) if any(a[i] != b[i] for a, b in answers))
    return sum(1 for _ in islice(differing, _MOST_DISCORDANT))


def compare(pairs: Sequence[PairedScores]) -> Comparison | None:
    """Compare two systems over all pairs, such as contexts of a study; None where there are no differences.

    Pairs of one group share their training rows and are averaged first. The remaining units are taken as independent.
    """
    merged = [pair for pair in map(_merge, _by_group(pairs).values()) if pair.differences]
    if not merged:
        return None
    units = np.concatenate([list(pair.differences.values()) for pair in merged])
    observed = float(units.mean())
    total = np.zeros(())
    shared_variance = own_variance = 0.0
    for pair in merged:
        rows = np.stack(list(pair.resampled.values()))
        weight = len(rows) / len(units)
        shared, own = _variance_parts(rows)
        shared_variance, own_variance = shared_variance + weight**2 * shared, own_variance + weight * own
        seeds = np.array(list(pair.differences.values()))
        # Resampled examples and resampled seeds are drawn independently, and their deviations are added.
        total = total + weight * (rows.mean(axis=0) + seeds @ _seed_weights(rows, pair.group) - seeds.mean())
    low, high = np.nanquantile(total, [0.025, 0.975])
    sd = float(units.std(ddof=1)) if len(units) > 1 else None
    if sd is not None and sd <= _ROUNDING * max(1.0, abs(observed)):
        sd = 0.0
    return Comparison(
        observed, float(low), float(high), sd, len(units), len(merged), shared_variance**0.5, own_variance**0.5,
        _p_over_seeds(units, observed), _p_over_examples(total, observed, sum(pair.discordant for pair in merged)),
        sum(pair.examples for pair in merged),
    )  # fmt: skip


def _p_over_seeds(units: Floats, observed: float) -> tuple[float, float]:
    """Return the one-sided p-values of the sign flips."""
    two_sided = permutation_over_seeds(units.tolist(), [0.0] * len(units))
    nearer, further = two_sided / 2, 1 - two_sided / 2
    return (nearer, further) if observed > 0 else (further, nearer) if observed < 0 else (1.0, 1.0)


def _p_over_examples(total: Floats, observed: float, discordant: float) -> tuple[float, float]:
    """Return the one-sided p-values of the bootstrap: how often a resample deviates by the observed difference.

    A metric may be NaN on a resample; such a resample counts as one that deviates.
    """
    deviations = total - observed
    above, below = (
        (int(np.sum(~(sign * deviations < sign * observed - _TIE))) + 1) / (len(total) + 1) for sign in (1, -1)
    )
    floor = 0.5**discordant
    return max(above, floor), max(below, floor)


def _variance_parts(rows: Floats) -> tuple[float, float]:
    """Split the variance over resampled examples into what all seeds share and what each seed adds."""
    seeds = len(rows)
    of_mean, of_seed = float(rows.mean(axis=0).var()), float(rows.var(axis=1).mean())
    if seeds == 1:
        return of_mean, 0.0
    own = max(0.0, (of_seed - of_mean) * seeds / (seeds - 1))
    return max(0.0, of_mean - own / seeds), own


def _by_group(pairs: Sequence[PairedScores]) -> dict[str, list[PairedScores]]:
    groups: dict[str, list[PairedScores]] = {}
    for pair in pairs:
        groups.setdefault(pair.group, []).append(pair)
    return groups


def _merge(pairs: Sequence[PairedScores]) -> PairedScores:
    """Average pairs of one group over the seeds that all of them have."""
    seeds = sorted(set.intersection(*(set(pair.differences) for pair in pairs)))
    return PairedScores(
        pairs[0].group,
        {seed: float(np.mean([pair.differences[seed] for pair in pairs])) for seed in seeds},
        {seed: np.mean([pair.resampled[seed] for pair in pairs], axis=0) for seed in seeds},
        # Several contexts may share one test set, so their examples are not added up.
        max(pair.examples for pair in pairs),
        max(pair.discordant for pair in pairs),
    )


def _seed_weights(rows: Floats, group: str) -> Floats:
    """Return the weight of each seed in each resample (seeds, samples): how often it was drawn, over all draws."""
    seeds, samples = rows.shape
    drawn = randomness.generator(0, 0, seeds, f"seeds of {group}").integers(0, seeds, size=(seeds, samples))
    return np.stack([(drawn == seed).sum(axis=0) for seed in range(seeds)]) / seeds
