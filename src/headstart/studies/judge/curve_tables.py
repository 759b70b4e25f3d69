"""Curves as tables: scores side by side along an axis, and where each system overtakes each baseline."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headstart.evaluation.metrics import about
from headstart.evaluation.significance import interval
from headstart.studies.definition import Study
from headstart.studies.grid import Context
from headstart.studies.judge import curves
from headstart.studies.judge.curves import Crossing
from headstart.studies.judge.results import CellScore, Results
from headstart.studies.judge.tables import Table, TableColumn


def sheets(study: Study, results: Results) -> list[Table]:
    """Return the scores side by side: a sheet for each slice of each axis of numbers, or one of all contexts."""
    made = []
    axes = [name for name in study.axes if name not in study.compare]
    of_numbers = curves.numeric_axes(study)
    for axis in of_numbers:
        place = axes.index(axis)
        for slice_, contexts in curves.slices(study, results, axis).items():
            named = {f"{context[place]} {axis}": context for context in contexts}
            # A level may be a path; the sheet's name becomes that of a file.
            parts = ["scores", *([axis] if len(of_numbers) > 1 else []), *slice_]
            name, title = re.sub(r"[^\w.]+", "-", "-".join(parts)), ", ".join(slice_) or study.question
            made.append(_side_by_side(results, named, name, title, has_mean=False))
    if not made:
        named = {", ".join(context) or "score": context for context in results.contexts}
        made.append(_side_by_side(results, named, "scores", study.question, has_mean=len(named) > 1))
    return [sheet for sheet in made if sheet.rows]


def _side_by_side(results: Results, contexts: Mapping[str, Context], name: str, title: str, has_mean: bool) -> Table:
    """Return mean ± half of the 95 % interval for each system, a column for each context, and the mean of them all."""
    columns = [TableColumn("system", str, is_number=False), *(TableColumn(told, str) for told in contexts)]
    of_contexts = [runs for (_, context), runs in results.outcomes.items() if context in set(contexts.values())]
    kinds = {about(next(iter(runs.values())).metric) for runs in of_contexts}
    has_mean = has_mean and len({(kind.scale, kind.lower_is_better) for kind in kinds}) <= 1
    if has_mean:
        columns.append(TableColumn("mean", str))
    rows, unfinished = [], []
    missing = {(hole.cell.system, hole.cell.context) for hole in results.holes}
    for system in results.systems:
        runs = [results.of(system, context) for context in contexts.values()]
        if any(runs):
            means = [_mean(one) for one in runs if one]
            places = about(next(iter(next(filter(None, runs)).values())).metric).decimals
            mean = f"{sum(means) / len(means):.{places}f}" if len(means) == len(runs) else None
            rows.append([system.name, *map(_score, runs), *([mean] if has_mean else [])])
            unfinished.append(any((system, context) in missing for context in contexts.values()))
    return Table(name, title, columns, rows, unfinished)


def _mean(runs: Mapping[int, CellScore]) -> float:
    scale = about(next(iter(runs.values())).metric).scale
    return scale * sum(o.score for o in runs.values()) / len(runs)


def _score(runs: Mapping[int, CellScore]) -> str | None:
    if not runs:
        return None
    known = about(next(iter(runs.values())).metric)
    found = interval([o.score for o in runs.values()])
    mean = f"{_mean(runs):.{known.decimals}f}"
    if found.high is None or not found.sd:
        return mean
    return f"{mean} ± {known.scale * (found.high - found.mean):.{known.decimals}f}"


def crossings(study: Study, results: Results) -> Table | None:
    """Return for each numeric axis where each system overtakes each baseline; None where a study has no such axis."""
    axes = [name for name in study.axes if name not in study.compare]
    rows: list[list[Any]] = []
    for axis in curves.numeric_axes(study):
        others = [name for name in axes if name != axis]
        for slice_, contexts in curves.slices(study, results, axis).items():
            for found in curves.crossings(study, results, axis, contexts):
                levels = dict(zip(others, slice_, strict=True))
                where = ", ".join(levels.values()) or "all"
                placed = [found.at, found.low, found.high, *(found.lead or (None, None))]
                rows.append([where, found.system, found.baseline, axis, *placed, found.share])
    if not rows:
        return None
    words = [TableColumn(name, str, is_number=False) for name in ("context", "system", "overtakes", "axis")]
    numbers = [
        TableColumn(name, lambda value: f"{value:,.0f}") for name in ("at", "low", "high", "ahead from", "ahead to")
    ]
    columns = [*words, *numbers, TableColumn("ends above", lambda value: f"{value:.0%}")]
    return Table("crossings", "Crossing points", columns, rows, [row[4] is None for row in rows])


def overtaking(study: Study, results: Results, axis: str) -> Table | None:
    """Return where each system is above the reference, a column for each slice; None where nothing is known."""
    slices = curves.slices(study, results, axis)
    found: dict[str, dict[Context, str]] = {}
    for slice_, contexts in slices.items():
        xs = [dot.x for curve in curves.along(study, results, axis, contexts) for dot in curve.dots]
        for one in curves.crossings(study, results, axis, contexts):
            if one.baseline == study.reference:
                found.setdefault(one.system, {})[slice_] = told(one, min(xs), max(xs))
    if not found:
        return None
    words = [TableColumn(", ".join(slice_) or axis, str, is_number=False) for slice_ in slices]
    rows: list[list[Any]] = [[name, *(cells.get(slice_) for slice_ in slices)] for name, cells in found.items()]
    title = f"At how many {axis} each is above {study.reference}"
    return Table("overtaking", title, [TableColumn("system", str, is_number=False), *words], rows, [False] * len(rows))


def told(found: Crossing, first: float, last: float) -> str:
    """Say where a system leads: never, up to a number, between two, or from one on, with the interval of that."""
    if found.at is None:
        if found.lead is None:
            return "never"
        start, end = found.lead
        return f"up to {end:,.0f}" if start <= first * 1.0001 else f"{start:,.0f} to {end:,.0f}"
    low = f"{found.low:,.0f}" if found.low is not None else f"{first:,.0f}"
    high = f"{found.high:,.0f}" if found.high is not None else f"> {last:,.0f}"
    is_sure = found.high is not None and found.high <= first * 1.0001
    return f"from {found.at:,.0f}" + ("" if is_sure else f" ({low} to {high})")
