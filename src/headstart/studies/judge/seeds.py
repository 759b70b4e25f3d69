"""Show how many seeds and test examples a difference of a given size needs, from the variance that a study measured."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from statistics import median

from headstart.core.errors import DataError
from headstart.evaluation.comparison import Comparison, compare
from headstart.studies.judge import units
from headstart.studies.judge.pairing import pair
from headstart.studies.judge.power import MOST_SEEDS, TARGET, Spread, power, seeds_needed, smallest_difference
from headstart.studies.study import StudyState

_SEEDS = (3, 5, 8, 12, 20)
_EXAMPLE_FACTORS = (1, 2, 4)


def run(state: StudyState, difference: float | None) -> str:
    """Return a table of power over seeds and examples, and the number of seeds that reaches a power of 0.8.

    `difference` is in the points of the table. Without it, the table shows the smallest difference that is confirmed
    with a power of 0.8.
    """
    comparisons = _comparisons(state)
    spread = Spread(
        median(item.sd for item in comparisons if item.sd is not None),
        median(item.examples_error for item in comparisons),
        median(item.residual for item in comparisons),
        claims=max(1, len(state.study.claims)),
    )
    scale, decimals, examples = _scale(state)
    lines = [
        f"Medians over {len(comparisons)} comparisons with {state.study.reference}: the paired difference has a "
        f"standard deviation of {scale * spread.sd:.{decimals + 1}f} points over seeds,",
        f"and a standard error of {scale * spread.examples_error:.{decimals + 1}f} points from the choice of "
        f"{examples:,} test examples.",
        f"{spread.claims} claim{'s are' if spread.claims > 1 else ' is'} tested together, each in one context.",
    ]
    if difference is None:
        lines.append(f"The smallest true difference that is confirmed with a power of {TARGET:g}, in points:")
        return "\n".join(lines + _grid(
            examples,
            lambda seeds, factor: _points(smallest_difference(spread.with_examples(factor), seeds), scale, decimals),
        ))  # fmt: skip
    lines.append(f"The power to confirm a true difference of {difference:g} points:")
    size = difference / scale
    lines += _grid(examples, lambda seeds, factor: f"{power(size, spread.with_examples(factor), seeds):.0%}")
    for factor in _EXAMPLE_FACTORS:
        needed = seeds_needed(size, spread.with_examples(factor))
        seeds = f"more than {MOST_SEEDS} seeds" if needed is None else f"{needed} seeds"
        lines.append(f"A power of {TARGET:g} with {factor * examples:,} test examples takes {seeds}.")
    return "\n".join(lines)


def _comparisons(state: StudyState) -> list[Comparison]:
    """Return every system's comparison with the reference of its context that has two seeds or more."""
    results, comparisons = state.results, []
    state.resamples.prepare(results)
    references = [system for system in results.systems if system.name == state.study.reference][:1]
    for reference, context in product(references, results.contexts):
        reference_runs = results.of(reference, context)
        for system in results.systems:
            runs = results.of(system, context)
            is_seedless = units.are_untrained([*runs.values(), *reference_runs.values()])
            if system != reference and runs and reference_runs and not is_seedless:
                paired = pair([runs], [reference_runs], state.resamples)
                comparison = compare([paired]) if paired is not None else None
                if comparison is not None and comparison.sd is not None:
                    comparisons.append(comparison)
    if not comparisons:
        raise DataError(
            "no system has two finished seeds in common with the study's reference",
            allowed="Power is computed from the spread over seeds, which systems that are not trained do not have",
            do="Run some cells first: `headstart study run`",
        )
    return comparisons


def _scale(state: StudyState) -> tuple[float, int, int]:
    """Return what the table multiplies scores by, its decimals, and the median number of test examples."""
    cells = [cell for runs in state.results.scores.values() for cell in runs.values()]
    known = cells[0].about
    return known.scale, known.decimals, int(median(len(cell.gold) for cell in cells))


def _points(difference: float | None, scale: float, decimals: int) -> str:
    return "–" if difference is None else f"{scale * difference:.{decimals}f}"


def _grid(examples: int, value: Callable[[int, int], str]) -> list[str]:
    header = f"{'seeds':>8}" + "".join(f"{factor * examples:>12,}" for factor in _EXAMPLE_FACTORS) + "  test examples"
    rows = [f"{seeds:>8}" + "".join(f"{value(seeds, factor):>12}" for factor in _EXAMPLE_FACTORS) for seeds in _SEEDS]
    return [header, *rows]
