"""Curves of a study: score along an axis of numbers, where it crosses a baseline, score against cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headstart.core import randomness
from headstart.evaluation.metrics import Floats, about
from headstart.evaluation.significance import interval
from headstart.studies.definition import Study
from headstart.studies.grid import Context, System
from headstart.studies.judge.results import CellScore, Results

_REDRAWN = 2000


@dataclass(frozen=True)
class Dot:
    """One place on a curve: x, the mean score over seeds and its interval, and what hovering shows."""

    x: float
    mean: float
    low: float | None
    high: float | None
    told: str


@dataclass(frozen=True)
class Curve:
    """One system over an axis."""

    name: str
    is_baseline: bool
    dots: list[Dot]


@dataclass(frozen=True)
class Crossing:
    """Where a system overtakes a baseline along an axis; None: it does so nowhere on it."""

    system: str
    baseline: str
    at: float | None
    low: float | None
    high: float | None
    """The middle 95 % over redrawn seeds; None on a side where some redraws do not cross."""
    share: float
    """Share of the redraws in which it ends above the baseline."""
    lead: tuple[float, float] | None = None
    """Where one that ends below was last ahead, from and to; None if it was never ahead, or is at the end."""


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
        return float(next(iter(runs.values())).details.get("train_rows", math.nan))
    return float(level)


def slices(study: Study, results: Results, axis: str) -> dict[Context, list[Context]]:
    """Return for each combination of the other axes its contexts along this one, in the order of the file."""
    axes = [name for name in study.axes if name not in study.compare]
    place = axes.index(axis)
    found: dict[Context, list[Context]] = {}
    for context in results.contexts:
        found.setdefault((*context[:place], *context[place + 1 :]), []).append(context)
    return found


def along(study: Study, results: Results, axis: str, contexts: Sequence[Context]) -> list[Curve]:
    """Return the curve of each system over an axis of numbers."""
    axes = [name for name in study.axes if name not in study.compare]
    place = axes.index(axis)
    curves = []
    for system in results.systems:
        dots = [
            _dot(_x(runs, context[place]), runs, f"{system.name}, {axis} {context[place]}")
            for context in contexts
            if (runs := results.of(system, context))
        ]
        if dots:
            curves.append(Curve(system.name, system.baseline is not None, sorted(dots, key=lambda dot: dot.x)))
    return curves


def _dot(x: float, runs: Mapping[int, CellScore], name: str) -> Dot:
    metric = next(iter(runs.values())).metric
    scale, places = about(metric).scale, about(metric).decimals
    found = interval([o.score for o in runs.values()])
    ends = [None if value is None else scale * value for value in (found.low, found.high)]
    spread = "" if ends[0] is None else f" ({ends[0]:.{places}f} to {ends[1]:.{places}f})"
    told = f"{name}: {metric} {scale * found.mean:.{places}f}{spread}, {found.seeds} seeds"
    return Dot(x, scale * found.mean, ends[0], ends[1], told)


def crossings(study: Study, results: Results, axis: str, contexts: Sequence[Context]) -> list[Crossing]:
    """Return where each system overtakes each baseline, on means over seeds, with an interval over redrawn seeds.

    Between two numbers of the axis the scores are joined by straight lines over the logarithm, where nought has one.
    A system has overtaken from the point on after which it stays above.
    """
    axes = [name for name in study.axes if name not in study.compare]
    place = axes.index(axis)
    found = []
    for system in [s for s in results.systems if s.baseline is None or s.baseline == "scratch"]:
        for baseline in [s for s in results.systems if s.baseline not in (None, "scratch")]:
            xs, gaps = _gaps(results, system, baseline, contexts, place)
            if len(xs) >= 2 and set.intersection(*(set(gap) for gap in gaps)):
                found.append(_crossing(system.name, baseline.name, xs, gaps))
    return found


def _gaps(
    results: Results, system: System, baseline: System, contexts: Sequence[Context], place: int
) -> tuple[list[float], list[dict[int, float]]]:
    """Return the places of the axis, and at each how far the system is above the baseline, by seed."""
    rows = []
    for context in contexts:
        ours, theirs = results.of(system, context), results.of(baseline, context)
        gap = {seed: ours[seed].sign * (ours[seed].score - theirs[seed].score) for seed in ours.keys() & theirs.keys()}
        if gap:
            rows.append((_x(ours, context[place]), gap))
    rows.sort(key=lambda row: row[0])
    return [x for x, _ in rows], [gap for _, gap in rows]


def _crossing(system: str, baseline: str, xs: list[float], gaps: list[dict[int, float]]) -> Crossing:
    seeds = sorted(set.intersection(*(set(gap) for gap in gaps)))
    table = np.array([[gap[seed] for gap in gaps] for seed in seeds])
    is_log = min(xs) > 0
    places = np.log(np.array(xs)) if is_log else np.array(xs)
    drawn = randomness.generator(0, 0, len(seeds), "crossing").integers(0, len(seeds), size=(_REDRAWN, len(seeds)))
    redrawn = np.array([first_above(places, table[row].mean(axis=0)) for row in drawn])
    gap = table.mean(axis=0)
    at, lead = first_above(places, gap), lost_lead(places, gap)
    crossed = np.isfinite(redrawn)
    low, high = _quantiles(redrawn)
    at, low, high, *ends = ((math.exp(place) if is_log else place) for place in (at, low, high, *(lead or ())))
    return Crossing(
        system, baseline, _finite(at), _finite(low), _finite(high), float(crossed.mean()),
        (ends[0], ends[1]) if ends else None,
    )  # fmt: skip


def first_above(places: Floats, gap: Floats) -> float:
    """Return from where on a line through the gaps stays above nought; infinity where it ends below."""
    if gap[-1] <= 0:
        return math.inf
    below = np.flatnonzero(gap <= 0)
    if not len(below):
        return float(places[0])
    place = int(below[-1])
    share = -gap[place] / (gap[place + 1] - gap[place])
    return float(places[place] + share * (places[place + 1] - places[place]))


def lost_lead(places: Floats, gap: Floats) -> tuple[float, float] | None:
    """Return from where to where a line through the gaps was last above nought; None where it ends so, or never was."""
    above = np.flatnonzero(gap > 0)
    if not len(above) or above[-1] == len(gap) - 1:
        return None
    last = int(above[-1])
    share = gap[last] / (gap[last] - gap[last + 1])
    end = float(places[last] + share * (places[last + 1] - places[last]))
    return first_above(places[: last + 1], gap[: last + 1]), end


def _quantiles(values: Floats) -> tuple[float, float]:
    """Return the middle 95 %, without mixing an infinite value into a finite one."""
    low, high = np.quantile(values, [0.025, 0.975], method="closest_observation")
    return float(low), float(high)


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value


@dataclass(frozen=True)
class Placed:
    """A system by what it costs and what it scores."""

    name: str
    cost: float
    score: float
    on_front: bool
    told: str


def against_cost(
    results: Results, context: Context, cost: Callable[[CellScore], float | None], unit: str
) -> list[Placed]:
    """Place the systems of a context by cost and score; those on the front are beaten by none that costs less."""
    found: list[tuple[str, float, float]] = []
    shown: dict[str, tuple[float, str]] = {}
    for system in results.systems:
        runs = results.of(system, context)
        values = [cost(o) for o in runs.values()]
        known = [value for value in values if value]
        if runs and len(known) == len(values):
            some = next(iter(runs.values()))
            points = about(some.metric).scale * float(np.mean([o.score for o in runs.values()]))
            shown[system.name] = points, some.metric
            found.append((system.name, float(np.mean(known)), some.sign * points))

    def told(name: str, price: float, _: float) -> str:
        points, metric = shown[name]
        return f"{name}: {metric} {points:.{about(metric).decimals}f} for {price:.3g} {unit}"

    return [replace(one, score=shown[one.name][0]) for one in on_front(found, told)]


def on_front(found: Sequence[tuple[str, float, float]], told: Callable[[str, float, float], str]) -> list[Placed]:
    """Place names by what they cost and what they bring, the cheapest first; `told` says what hovering shows."""
    placed = []
    for name, cost, score in found:
        is_beaten = any(c <= cost and s >= score and (c, s) != (cost, score) for _, c, s in found)
        placed.append(Placed(name, cost, score, not is_beaten, told(name, cost, score)))
    return sorted(placed, key=lambda one: one.cost)
