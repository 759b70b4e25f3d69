"""The table that a score must stand in: methods over seeds, intervals, paired tests, cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headstart.evaluation.failures import failed
from headstart.evaluation.forgetting import Forgetting
from headstart.evaluation.metrics import about
from headstart.evaluation.significance import Comparison, Interval, describe_p, format_p, interval, paired_bootstrap
from headstart.stages.finetune.cell import MethodResult
from headstart.stages.runs import card


@dataclass(frozen=True)
class MethodRow:
    """One method: its score over seeds, and the chosen method's lead over it."""

    method: str
    score: Interval
    lead: Comparison | None
    trainable: int | None
    seconds: float
    kwh: float | None
    failed: tuple[int, ...] = ()
    """Seeds whose score is no better than the majority class's."""
    forgetting: Forgetting | None = None
    """What the method did to what the body could do before, the mean over seeds."""


def rows(cells: Mapping[str, Sequence[MethodResult]], chosen: str, gold: Sequence[Any], metric: str) -> list[MethodRow]:
    """Summarise each method over its seeds and test the chosen one against each of the others."""
    table = []
    for method, runs in cells.items():
        lead = None
        if method != chosen:
            ours, theirs = [c.predictions for c in cells[chosen]], [c.predictions for c in runs]
            lead = _as_lead(paired_bootstrap(gold, ours, theirs, metric), metric)
        energies = [cell.cost.get("kwh") for cell in runs]
        table.append(
            MethodRow(
                method,
                interval([cell.test[metric] for cell in runs]),
                lead,
                runs[0].details.get("trainable_parameters"),
                sum(cell.cost["seconds"] for cell in runs) / len(runs),
                None if any(e is None for e in energies) else sum(e for e in energies if e is not None) / len(runs),
                failed(_by_seed(runs), _by_seed(cells.get("majority", ())), gold, metric),
                _forgetting(runs),
            )
        )
    return table


def _by_seed(runs: Sequence[MethodResult]) -> dict[int, MethodResult]:
    return {cell.seed: cell for cell in runs}


def _as_lead(found: Comparison, metric: str) -> Comparison:
    """Turn a difference of a metric of which less is better, so that whoever is better leads by more than nought."""
    if not about(metric).lower_is_better:
        return found
    return replace(found, difference=-found.difference, low=-found.high, high=-found.low)


def markdown(table: Sequence[MethodRow], metric: str, chosen: str) -> str:
    """Return the table in Markdown, scores in points of a hundred unless the metric is none of shares."""
    scale = about(metric).scale
    header = [
        "method",
        metric if scale == 1 else f"{metric} × {scale:g}",
        "95 % interval",
        f"{chosen} leads by",
        "p",
        "trained parameters",
        "seconds a run",
    ]
    body = [_cells(row, scale) for row in table]
    measured = {row.forgetting.what for row in table if row.forgetting is not None}
    if measured:
        header.append(f"change of {measured.pop()}")
        for cells, row in zip(body, table, strict=True):
            cells.append("–" if row.forgetting is None else f"{row.forgetting.change:+.3f}")
    if any(row.failed for row in table):
        header.append("failed seeds")
        for cells, row in zip(body, table, strict=True):
            cells.append(", ".join(map(str, row.failed)))
    return card.table(header, body)


def sentences(table: Sequence[MethodRow], metric: str, chosen: str) -> list[str]:
    """Say in words what the chosen method gained over each of the others."""
    said = []
    known = about(metric)
    scale, unit = known.scale, "" if known.scale == 1 else "points of "
    for row in table:
        if row.lead is None:
            continue
        digits = _digits(scale)
        spread = f"{scale * row.lead.low:+.{digits}f} to {scale * row.lead.high:+.{digits}f}"
        points = f"{abs(scale * row.lead.difference):.{digits}f}"
        if not float(points):
            said.append(f"{chosen} and {row.method} score alike in {metric} ({spread}{unit and ' points'}).")
            continue
        verb = "beats" if row.lead.difference > 0 else "loses to"
        clear = "" if row.lead.p_value < 0.05 else ", which may be chance"
        said.append(
            f"{chosen} {verb} {row.method} by {points} {unit}{metric} "
            f"({spread}, {describe_p(row.lead.p_value)}){clear}."
        )
    for row in table:
        if row.failed:
            seeds = f"seed{'s' * (len(row.failed) > 1)} {', '.join(map(str, row.failed))}"
            said.append(f"{row.method} failed with {seeds}: no better in {metric} than the majority class.")
    return said


def _forgetting(runs: Sequence[MethodResult]) -> Forgetting | None:
    found = [Forgetting(**cell.details["forgetting"]) for cell in runs if "forgetting" in cell.details]
    if not found:
        return None
    before, after = (sum(getattr(one, side) for one in found) / len(found) for side in ("before", "after"))
    return replace(found[0], before=before, after=after)


def _digits(scale: float) -> int:
    """Return the decimals that are told: a tenth of a point of a hundred, a thousandth of what is no share."""
    return 3 if scale == 1 else 1


def _cells(row: MethodRow, scale: float) -> list[str]:
    def told(value: float, sign: str = "") -> str:
        return f"{scale * value:{sign}.{_digits(scale)}f}"

    low, high = row.score.low, row.score.high
    spread = "–" if low is None or high is None else f"{told(low)} to {told(high)}"
    lead = ""
    if row.lead is not None:
        lead = f"{told(row.lead.difference, '+')} ({told(row.lead.low, '+')} to {told(row.lead.high, '+')})"
    p = "" if row.lead is None else format_p(row.lead.p_value)
    trained = "–" if row.trainable is None else f"{row.trainable:,}"
    return [row.method, told(row.score.mean), spread, lead, p, trained, f"{row.seconds:.1f}"]
