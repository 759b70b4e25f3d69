"""Curves as tables: scores side by side along an axis, and where each system overtakes each baseline."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headstart.evaluation.metrics import About
from headstart.evaluation.significance import interval
from headstart.studies.definition import Study
from headstart.studies.grid import Context
from headstart.studies.judge import curves
from headstart.studies.judge.curves import ROUNDING, Crossing
from headstart.studies.judge.results import CellScore, Results
from headstart.studies.judge.tables import StudyTable, TableColumn


def sheets(study: Study, results: Results) -> list[StudyTable]:
    """Return the scores side by side: one sheet for each slice of each numeric axis, or one sheet of all contexts."""
    tables = []
    axes = [name for name in study.axes if name not in study.compare]
    numeric = curves.numeric_axes(study)
    for axis in numeric:
        index = axes.index(axis)
        for slice_, contexts in curves.slices(study, results, axis).items():
            columns = {f"{context[index]} {axis}": context for context in contexts}
            # A level may be a path, and the sheet's name becomes a file name.
            parts = ["scores", *([axis] if len(numeric) > 1 else []), *slice_]
            name, title = re.sub(r"[^\w.]+", "-", "-".join(parts)), ", ".join(slice_) or "Scores side by side"
            tables.append(_side_by_side(results, columns, name, title, has_mean=False))
    if not tables:
        columns = {", ".join(context) or "score": context for context in results.contexts}
        tables.append(_side_by_side(results, columns, "scores", "Scores side by side", has_mean=len(columns) > 1))
    return [sheet for sheet in tables if sheet.rows]


def _side_by_side(
    results: Results, contexts: Mapping[str, Context], name: str, title: str, has_mean: bool
) -> StudyTable:
    """Return mean ± half of the 95 % interval for each system, a column for each context, and their mean.

    The mean is left out where the contexts are scored by metrics of different kinds.
    """
    columns = [TableColumn("system", str, is_number=False), *(TableColumn(header, str) for header in contexts)]
    in_contexts = [runs for (_, context), runs in results.scores.items() if context in set(contexts.values())]
    has_mean = has_mean and len({_about(runs).family for runs in in_contexts}) <= 1
    if has_mean:
        columns.append(TableColumn("mean", str))
    rows, unfinished = [], []
    missing = {(item.cell.system, item.cell.context) for item in results.missing}
    for system in results.systems:
        runs = [results.of(system, context) for context in contexts.values()]
        if any(runs):
            means = [_mean(by_seed) for by_seed in runs if by_seed]
            places = _about(next(filter(None, runs))).decimals
            mean = f"{sum(means) / len(means):.{places}f}" if len(means) == len(runs) else None
            rows.append([system.name, *map(_score, runs), *([mean] if has_mean else [])])
            unfinished.append(any((system, context) in missing for context in contexts.values()))
    return StudyTable(name, title, columns, rows, unfinished)


def _about(runs: Mapping[int, CellScore]) -> About:
    return next(iter(runs.values())).about


def _mean(runs: Mapping[int, CellScore]) -> float:
    return _about(runs).scale * sum(cell.score for cell in runs.values()) / len(runs)


def _score(runs: Mapping[int, CellScore]) -> str | None:
    if not runs:
        return None
    known = _about(runs)
    score = interval([cell.score for cell in runs.values()])
    mean = f"{_mean(runs):.{known.decimals}f}"
    if score.high is None or not score.sd:
        return mean
    return f"{mean} ± {known.scale * (score.high - score.mean):.{known.decimals}f}"


def crossings(study: Study, results: Results) -> StudyTable | None:
    """Return for each numeric axis where each system overtakes each baseline; None where a study has no such axis."""
    rows: list[list[Any]] = []
    for axis in curves.numeric_axes(study):
        for slice_, contexts in curves.slices(study, results, axis).items():
            for crossing in curves.crossings(study, results, axis, contexts):
                values = [crossing.at, crossing.low, crossing.high, *(crossing.lead or (None, None))]
                where = ", ".join(slice_) or "all"
                rows.append([where, crossing.system, crossing.baseline, axis, *values, crossing.fraction_above])
    if not rows:
        return None
    words = [TableColumn(name, str, is_number=False) for name in ("context", "system", "overtakes", "axis")]
    numbers = [
        TableColumn(name, lambda value: f"{value:,.0f}") for name in ("at", "low", "high", "ahead from", "ahead to")
    ]
    columns = [*words, *numbers, TableColumn("ends above", lambda value: f"{value:.0%}")]
    return StudyTable("crossings", "Crossing points", columns, rows, [row[4] is None for row in rows])


def overtaking(study: Study, results: Results, axis: str) -> StudyTable | None:
    """Return where each system is above the reference, a column for each slice; None where nothing is known."""
    slices = curves.slices(study, results, axis)
    by_system: dict[str, dict[Context, str]] = {}
    for slice_, contexts in slices.items():
        xs = [dot.x for curve in curves.along(study, results, axis, contexts) for dot in curve.dots]
        for crossing in curves.crossings(study, results, axis, contexts):
            if crossing.baseline == study.reference:
                by_system.setdefault(crossing.system, {})[slice_] = describe_crossing(crossing, min(xs), max(xs))
    if not by_system:
        return None
    words = [TableColumn(", ".join(slice_) or axis, str, is_number=False) for slice_ in slices]
    rows: list[list[Any]] = [[name, *(cells.get(slice_) for slice_ in slices)] for name, cells in by_system.items()]
    title = f"At how many {axis} each is above {study.reference}"
    return StudyTable(
        "overtaking", title, [TableColumn("system", str, is_number=False), *words], rows, [False] * len(rows)
    )


def describe_crossing(crossing: Crossing, first: float, last: float) -> str:
    """Return where a system leads: never, up to a number, between two, or from one on, with its interval."""
    if crossing.at is None:
        if crossing.lead is None:
            return "never"
        start, end = crossing.lead
        return f"up to {end:,.0f}" if start <= first * ROUNDING else f"{start:,.0f} to {end:,.0f}"
    low = f"{crossing.low:,.0f}" if crossing.low is not None else f"{first:,.0f}"
    high = f"{crossing.high:,.0f}" if crossing.high is not None else f"> {last:,.0f}"
    is_sure = crossing.high is not None and crossing.high <= first * ROUNDING
    return f"from {crossing.at:,.0f}" + ("" if is_sure else f" ({low} to {high})")
