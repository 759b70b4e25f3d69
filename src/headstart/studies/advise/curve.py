"""The learning curve of a cheap method: its scores with a half, a quarter and an eighth of the training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.core.log import logger
from headstart.evaluation.intervals import NORMAL_95, bootstrap
from headstart.evaluation.metrics import about
from headstart.studies.advise.cells import CellFailed, CellResult, Cells
from headstart.studies.advise.extrapolate import CurvePoint, FittedCurve, fit
from headstart.studies.advise.rounds import ROUNDS
from headstart.studies.advise.search import Clock, TriedMethod

_PARTS = (2, 4, 8)
_FEWEST_ROWS = 16
_LARGEST_SHARE = 0.25
"""The share of the time budget that the curve may use."""


@dataclass(frozen=True)
class LearningCurve:
    """Scores of one method by the number of training rows; a lower score is better if `sign` is -1."""

    method: str
    points: list[CurvePoint]
    fitted: FittedCurve | None
    sign: int


def measure(results: Sequence[TriedMethod], cells: Cells, clock: Clock) -> LearningCurve | str:
    """Run the best of the cheap methods on fewer rows, and fit its curve; returns the reason if there is none."""
    complete = [
        result for result in results
        if not result.method.is_trained and result.method.name != "majority" and len(result.rounds) == ROUNDS
    ]  # fmt: skip
    if not complete:
        return "no method but majority and the trained ones ran in all rounds"
    metric = complete[0].rounds[0].metric
    sign = -1 if about(metric).lower_is_better else 1
    ranked = sorted(complete, key=lambda result: -sign * sum(cell.score for cell in result.rounds.values()))
    sizes = _sizes(min(round_.rows["train"] for round_ in cells.rounds))
    if len(sizes) < 2:
        return "there are too few training rows to divide"
    allowed = min(clock.left, _LARGEST_SHARE * clock.budget)
    for result in ranked:
        if len(sizes) * ROUNDS * result.cell_seconds <= allowed:
            return _run(result, cells, sizes, sign, clock)
    return f"the learning curve would use more than {_LARGEST_SHARE:.0%} of the time"


def _sizes(rows: int) -> list[int]:
    return [rows // part for part in _PARTS if rows // part >= _FEWEST_ROWS]


def _run(result: TriedMethod, cells: Cells, sizes: Sequence[int], sign: int, clock: Clock) -> LearningCurve:
    started, is_new = clock.spent, False
    points = [
        CurvePoint(cells.rounds[number].rows["train"], number, sign * cell.score, _error(cell))
        for number, cell in result.rounds.items()
    ]
    for size in sizes:
        for number in range(ROUNDS):
            try:
                cell = cells.run(result.method, None, number, size)
            except CellFailed as error:
                logger.warning("%s", error)
                continue
            clock.spent += cell.seconds
            is_new = is_new or cell.is_new
            if not cell.left_out:
                points.append(CurvePoint(size, number, sign * cell.score, _error(cell)))
    points.sort(key=lambda point: (point.rows, point.round))
    shown = ", ".join(f"{size:,}" for size in sizes)
    if is_new:
        logger.info("learning curve: %s with %s rows, %.1f s", result.method.name, shown, clock.spent - started)
    return LearningCurve(result.method.name, points, fit(points), sign)


def _error(cell: CellResult) -> float:
    """Return the standard error of a score over resampled held-out rows."""
    found = bootstrap(cell.metric, cell.gold, cell.predictions)
    return 0.0 if found.low is None or found.high is None else (found.high - found.low) / (2 * NORMAL_95)
