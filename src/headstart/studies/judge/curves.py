"""Curves of a study: score along a numeric axis, where it crosses a baseline, and score against cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headstart.core import randomness
from headstart.evaluation.metrics import Floats
from headstart.evaluation.significance import interval
from headstart.studies.definition import Study
from headstart.studies.grid import Context, System
from headstart.studies.judge.results import CellScore, Results

ROUNDING = 1.0001
"""exp(log(x)) may exceed x by rounding errors."""
_RESAMPLES = 2000


@dataclass(frozen=True)
class Dot:
    """A point of a curve: x, the mean score over seeds with its interval, and the label shown on hover."""

    x: float
    mean: float
    low: float | None
    high: float | None
    label: str


@dataclass(frozen=True)
class Curve:
    """One system along an axis."""

    name: str
    is_baseline: bool
    dots: list[Dot]


@dataclass(frozen=True)
class Crossing:
    """Where a system overtakes a baseline along an axis."""

    system: str
    baseline: str
    at: float | None
    """From where on the system stays above; None where it ends below."""
    low: float | None
    high: float | None
    """The middle 95 % over resampled seeds; None on a side where some resamples do not cross."""
    fraction_above: float
    """Fraction of the resamples in which the system ends above the baseline."""
    lead: tuple[float, float] | None = None
    """From where to where a system that ends below was last ahead; None if it never was, or ends ahead."""


def numeric_axes(study: Study) -> list[str]:
    """Return the axes that are not compared and whose levels are numbers; `all` counts as the last."""
    axes = [axis for axis in study.axes if axis not in study.compare]
    return [axis for axis in axes if len(study.axes[axis]) > 1 and all(_is_number(level) for level in study.axes[axis])]


def _is_number(level: str) -> bool:
    try:
        return math.isfinite(float(level))
    except ValueError:
        return level == "all"


def _x(runs: Mapping[int, CellScore], level: str) -> float:
    if level == "all":
        rows = next(iter(runs.values())).details.train_rows
        return math.nan if rows is None else float(rows)
    return float(level)


def slices(study: Study, results: Results, axis: str) -> dict[Context, list[Context]]:
    """Return for each combination of the other axes its contexts along this axis, in the order of the file."""
    index = _index(study, axis)
    by_others: dict[Context, list[Context]] = {}
    for context in results.contexts:
        by_others.setdefault((*context[:index], *context[index + 1 :]), []).append(context)
    return by_others


def _index(study: Study, axis: str) -> int:
    """Return the index of an axis within a context."""
    return [name for name in study.axes if name not in study.compare].index(axis)


def along(study: Study, results: Results, axis: str, contexts: Sequence[Context]) -> list[Curve]:
    """Return the curve of each system along a numeric axis."""
    index = _index(study, axis)
    curves = []
    for system in results.systems:
        dots = [
            _dot(_x(runs, context[index]), runs, f"{system.name}, {axis} {context[index]}")
            for context in contexts
            if (runs := results.of(system, context))
        ]
        if dots:
            curves.append(Curve(system.name, system.baseline is not None, sorted(dots, key=lambda dot: dot.x)))
    return curves


def _dot(x: float, runs: Mapping[int, CellScore], name: str) -> Dot:
    first = next(iter(runs.values()))
    metric, scale, places = first.metric, first.about.scale, first.about.decimals
    score = interval([cell.score for cell in runs.values()])
    low, high = (None if value is None else scale * value for value in (score.low, score.high))
    spread = "" if low is None else f" ({low:.{places}f} to {high:.{places}f})"
    label = f"{name}: {metric} {scale * score.mean:.{places}f}{spread}, {score.seeds} seeds"
    return Dot(x, scale * score.mean, low, high, label)


def crossings(study: Study, results: Results, axis: str, contexts: Sequence[Context]) -> list[Crossing]:
    """Return where each system overtakes each baseline, on means over seeds, with an interval over resampled seeds.

    Scores are interpolated linearly between two numbers of the axis, over the logarithm where all numbers are positive.
    A system has overtaken a baseline from the point after which it stays above.
    """
    index = _index(study, axis)
    overtakings = []
    for system in [s for s in results.systems if s.baseline is None or s.baseline == "scratch"]:
        for baseline in [s for s in results.systems if s.baseline not in (None, "scratch")]:
            xs, gaps = _gaps(results, system, baseline, contexts, index)
            if len(xs) >= 2 and set.intersection(*(set(gap) for gap in gaps)):
                overtakings.append(_crossing(system.name, baseline.name, xs, gaps))
    return overtakings


def _gaps(
    results: Results, system: System, baseline: System, contexts: Sequence[Context], index: int
) -> tuple[list[float], list[dict[int, float]]]:
    """Return the positions on the axis, and at each by how much the system exceeds the baseline, by seed."""
    rows = []
    for context in contexts:
        runs, others = results.of(system, context), results.of(baseline, context)
        gap = {seed: runs[seed].sign * (runs[seed].score - others[seed].score) for seed in runs.keys() & others.keys()}
        if gap:
            rows.append((_x(runs, context[index]), gap))
    rows.sort(key=lambda row: row[0])
    return [x for x, _ in rows], [gap for _, gap in rows]


def _crossing(system: str, baseline: str, xs: list[float], gaps: list[dict[int, float]]) -> Crossing:
    """Return the crossing of one system with one baseline from their gaps."""
    seeds = sorted(set.intersection(*(set(gap) for gap in gaps)))
    table = np.array([[gap[seed] for gap in gaps] for seed in seeds])
    is_log = min(xs) > 0
    positions = np.log(np.array(xs)) if is_log else np.array(xs)
    drawn = randomness.generator(0, 0, len(seeds), "crossing").integers(0, len(seeds), size=(_RESAMPLES, len(seeds)))
    resampled = np.array([first_above(positions, table[row].mean(axis=0)) for row in drawn])
    gap = table.mean(axis=0)
    at, lead = first_above(positions, gap), lost_lead(positions, gap)
    low, high = _quantiles(resampled)
    at, low, high, *ends = ((math.exp(x) if is_log else x) for x in (at, low, high, *(lead or ())))
    return Crossing(
        system, baseline, _finite(at), _finite(low), _finite(high), float(np.isfinite(resampled).mean()),
        (ends[0], ends[1]) if ends else None,
    )  # fmt: skip


def first_above(positions: Floats, gap: Floats) -> float:
    """Return from where on a line through the gaps stays above zero; infinity where it ends below."""
    if gap[-1] <= 0:
        return math.inf
    below = np.flatnonzero(gap <= 0)
    if not len(below):
        return float(positions[0])
    i = int(below[-1])
    fraction = -gap[i] / (gap[i + 1] - gap[i])
    return float(positions[i] + fraction * (positions[i + 1] - positions[i]))


def lost_lead(positions: Floats, gap: Floats) -> tuple[float, float] | None:
    """Return where a line through the gaps was last above zero, from and to; None where it ends above, or never was."""
    above = np.flatnonzero(gap > 0)
    if not len(above) or above[-1] == len(gap) - 1:
        return None
    last = int(above[-1])
    fraction = gap[last] / (gap[last] - gap[last + 1])
    end = float(positions[last] + fraction * (positions[last + 1] - positions[last]))
    return first_above(positions[: last + 1], gap[: last + 1]), end


def _quantiles(values: Floats) -> tuple[float, float]:
    """Return the middle 95 %, without interpolating between a finite and an infinite value."""
    low, high = np.quantile(values, [0.025, 0.975], method="closest_observation")
    return float(low), float(high)


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value


@dataclass(frozen=True)
class CostPoint:
    """A system by its cost and its score."""

    name: str
    cost: float
    score: float
    on_front: bool
    label: str


def against_cost(
    results: Results, context: Context, cost: Callable[[CellScore], float | None], unit: str
) -> list[CostPoint]:
    """Return the systems of a context by cost and score; no cheaper system beats those on the Pareto front."""
    points: list[tuple[str, float, float]] = []
    shown: dict[str, tuple[float, CellScore]] = {}
    for system in results.systems:
        runs = results.of(system, context)
        values = [cost(cell) for cell in runs.values()]
        known = [value for value in values if value]
        if runs and len(known) == len(values):
            first = next(iter(runs.values()))
            score = first.about.scale * float(np.mean([cell.score for cell in runs.values()]))
            shown[system.name] = score, first
            points.append((system.name, float(np.mean(known)), first.sign * score))

    def label(name: str, price: float, _: float) -> str:
        score, cell = shown[name]
        return f"{name}: {cell.metric} {score:.{cell.about.decimals}f} for {price:.3g} {unit}"

    return [replace(point, score=shown[point.name][0]) for point in on_front(points, label)]


def on_front(points: Sequence[tuple[str, float, float]], label: Callable[[str, float, float], str]) -> list[CostPoint]:
    """Return (name, cost, score) as points, the cheapest first; `label` returns the text shown on hover."""
    placed = []
    for name, cost, score in points:
        is_beaten = any(c <= cost and s >= score and (c, s) != (cost, score) for _, c, s in points)
        placed.append(CostPoint(name, cost, score, not is_beaten, label(name, cost, score)))
    return sorted(placed, key=lambda point: point.cost)
