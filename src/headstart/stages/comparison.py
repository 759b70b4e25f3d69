"""The table that a score must stand in: methods over seeds, intervals, paired tests, cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headstart.evaluation.significance import Comparison, Interval, interval, paired_bootstrap
from headstart.stages import card
from headstart.stages.adapt import Cell


@dataclass(frozen=True)
class Row:
    """One method: its score over seeds, and the chosen method's lead over it."""

    method: str
    score: Interval
    lead: Comparison | None
    trainable: int | None
    seconds: float
    kwh: float | None


def rows(cells: Mapping[str, Sequence[Cell]], chosen: str, gold: Sequence[Any], metric: str) -> list[Row]:
    """Summarise each method over its seeds and test the chosen one against each of the others."""
    table = []
    for method, runs in cells.items():
        lead = None
        if method != chosen:
            ours, theirs = [c.predictions for c in cells[chosen]], [c.predictions for c in runs]
            lead = paired_bootstrap(gold, ours, theirs, metric)
        energies = [cell.cost.get("kwh") for cell in runs]
        table.append(
            Row(
                method,
                interval([cell.test[metric] for cell in runs]),
                lead,
                runs[0].details.get("trainable_parameters"),
                sum(cell.cost["seconds"] for cell in runs) / len(runs),
                None if any(e is None for e in energies) else sum(e for e in energies if e is not None) / len(runs),
            )
        )
    return table


def markdown(table: Sequence[Row], metric: str, chosen: str) -> str:
    """Return the table in Markdown, scores in points."""
    header = [
        "method",
        f"{metric} × 100",
        "95 % interval",
        f"{chosen} leads by",
        "p",
        "trained parameters",
        "seconds a run",
    ]
    return card.table(header, [_cells(row) for row in table])


def sentences(table: Sequence[Row], metric: str, chosen: str) -> list[str]:
    """Say in words what the chosen method gained over each of the others."""
    said = []
    for row in table:
        if row.lead is None:
            continue
        spread = f"{100 * row.lead.low:+.1f} to {100 * row.lead.high:+.1f}"
        points = f"{abs(100 * row.lead.difference):.1f}"
        if points == "0.0":
            said.append(f"{chosen} and {row.method} score alike in {metric} ({spread} points).")
            continue
        verb = "beats" if row.lead.difference > 0 else "loses to"
        clear = "" if row.lead.p_value < 0.05 else ", which may be chance"
        said.append(
            f"{chosen} {verb} {row.method} by {points} points of {metric} ({spread}, p {_p(row.lead.p_value)}){clear}."
        )
    return said


def _cells(row: Row) -> list[str]:
    spread = (
        "–"
        if row.score.low is None or row.score.high is None
        else f"{100 * row.score.low:.1f} to {100 * row.score.high:.1f}"
    )
    lead = (
        ""
        if row.lead is None
        else f"{100 * row.lead.difference:+.1f} ({100 * row.lead.low:+.1f} to {100 * row.lead.high:+.1f})"
    )
    p = "" if row.lead is None else _p(row.lead.p_value).removeprefix("= ")
    trained = "–" if row.trainable is None else f"{row.trainable:,}"
    return [row.method, f"{100 * row.score.mean:.1f}", spread, lead, p, trained, f"{row.seconds:.1f}"]


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"
