"""How many seeds and test examples a difference of a given size needs, from the variance that a study has seen."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from headstart.core.errors import DataError
from headstart.evaluation.metrics import about
from headstart.studies.judge.comparison import Comparison, compare, pair
from headstart.studies.judge.power import WANTED, Spread, power, seeds_needed, smallest_difference
from headstart.studies.study import StudyState

_SEEDS = (3, 5, 8, 12, 20)
_MORE_EXAMPLES = (1, 2, 4)


def run(standing: StudyState, difference: float | None) -> str:
    """Return a table of power over seeds and examples, and the numbers that reach four in five.

    `difference` is in the points of the table; without it, the smallest one that is found four times in five is told.
    """
    seen = _seen(standing)
    spread = Spread(
        median(c.sd for c in seen if c.sd is not None), median(c.examples_error for c in seen),
        median(c.residual for c in seen), 1,
        max(1, len(standing.study.claims)),
    )  # fmt: skip
    scale, places, examples = _scale(standing)
    lines = [
        f"Seen in {len(seen)} comparisons with {standing.study.reference}, medians: the difference between paired runs "
        f"varies by {scale * spread.sd:.{places + 1}f} points over seeds,",
        f"and the choice of {examples:,} test examples by {scale * spread.examples_error:.{places + 1}f}. "
        f"{spread.claims} claim{'s are' if spread.claims > 1 else ' is'} tested together, each in one context.",
    ]
    if difference is None:
        lines.append(f"The smallest true difference that is confirmed in {WANTED:.0%} of studies, in points:")
        lines += _grid(
            examples, lambda seeds, more: _points(smallest_difference(spread.with_examples(more), seeds), scale, places)
        )
        return "\n".join(lines)
    lines.append(f"The chance that a true difference of {difference:g} points is confirmed:")
    size = difference / scale
    lines += _grid(examples, lambda seeds, more: f"{power(size, spread.with_examples(more), seeds):.0%}")
    for more in _MORE_EXAMPLES:
        needed = seeds_needed(size, spread.with_examples(more))
        told = "no number of seeds in reach" if needed is None else f"{needed} seeds"
        lines.append(f"{WANTED:.0%} with {more * examples:,} test examples takes {told}.")
    return "\n".join(lines)


def _seen(standing: StudyState) -> list[Comparison]:
    """Return every row's comparison with the reference of its context, of two seeds or more."""
    results, found = standing.results, []
    standing.resamples.prepare(results)
    for context in results.contexts:
        reference = next((s for s in results.systems if s.name == standing.study.reference), None)
        if reference is None:
            continue
        theirs = results.of(reference, context)
        for system in results.systems:
            ours = results.of(system, context)
            if system != reference and ours and theirs:
                made = pair([ours], [theirs], standing.resamples)
                one = compare([made]) if made is not None else None
                if one is not None and one.sd is not None:
                    found.append(one)
    if not found:
        raise DataError(
            "the study has no two finished systems with two seeds each, of which one is its reference",
            do="Run some cells first: `headstart study run`",
        )
    return found


def _scale(standing: StudyState) -> tuple[float, int, int]:
    """Return what the table multiplies scores by, its decimals, and how many test examples there are."""
    outcomes = [o for runs in standing.results.outcomes.values() for o in runs.values()]
    known = about(outcomes[0].metric)
    return known.scale, known.decimals, int(median(len(o.gold) for o in outcomes))


def _points(difference: float | None, scale: float, places: int) -> str:
    return "–" if difference is None else f"{scale * difference:.{places}f}"


def _grid(examples: int, value: Callable[[int, int], str]) -> list[str]:
    head = f"{'seeds':>8}" + "".join(f"{more * examples:>12,}" for more in _MORE_EXAMPLES) + "  test examples"
    rows = [f"{seeds:>8}" + "".join(f"{value(seeds, more):>12}" for more in _MORE_EXAMPLES) for seeds in _SEEDS]
    return [head, *rows]
