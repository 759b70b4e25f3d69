"""The table of a fine-tuning run: methods over seeds, intervals, comparisons with the chosen method, cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headstart.core.pages.markdown import markdown_table
from headstart.evaluation.baselines import READ_WHOLE_TEXTS
from headstart.evaluation.comparison import Comparison, compare_runs, too_few_seeds
from headstart.evaluation.failures import failed
from headstart.evaluation.forgetting import Forgetting
from headstart.evaluation.metrics import about
from headstart.evaluation.significance import LEVEL, Interval, describe_p, format_p, interval
from headstart.stages.finetune.result import MethodResult


@dataclass(frozen=True)
class MethodRow:
    """One method: its score over seeds, and the lead of the chosen method over it."""

    method: str
    score: Interval
    lead: Comparison | None
    """None for the chosen method itself."""
    trainable: int | None
    seconds: float
    kwh: float | None
    failed: tuple[int, ...] = ()
    """Seeds whose score is no better than the majority class's."""
    forgetting: Forgetting | None = None
    """The mean over seeds."""


def rows(cells: Mapping[str, Sequence[MethodResult]], chosen: str, gold: Sequence[Any], metric: str) -> list[MethodRow]:
    """Summarize each method over its seeds and compare the chosen method with each of the others."""
    table = []
    for method, runs in cells.items():
        lead = None
        if method != chosen:
            lead = compare_runs(gold, _predictions(cells[chosen]), _predictions(runs), metric)
        energies = [cell.cost.kwh for cell in runs]
        table.append(
            MethodRow(
                method,
                interval([cell.test[metric] for cell in runs]),
                lead,
                runs[0].details.trainable_parameters,
                sum(cell.cost.seconds for cell in runs) / len(runs),
                None if any(e is None for e in energies) else sum(e for e in energies if e is not None) / len(runs),
                failed(_by_seed(runs), _by_seed(cells.get("majority", ())), gold, metric),
                _forgetting(runs),
            )
        )
    return table


def _by_seed(runs: Sequence[MethodResult]) -> dict[int, MethodResult]:
    return {cell.seed: cell for cell in runs}


def _predictions(runs: Sequence[MethodResult]) -> dict[int, list[Any]]:
    return {cell.seed: cell.predictions for cell in runs}


def markdown(table: Sequence[MethodRow], metric: str, chosen: str, truncated: bool = False) -> str:
    """Return the table in Markdown; fractions are shown in points of a hundred.

    `truncated` means that the networks did not read all texts to the end; rows of baselines that did say so.
    """
    scale = about(metric).scale
    header = [
        "method",
        metric if scale == 1 else f"{metric} × {scale:g}",
        "95 % interval",
        f"{chosen} leads by",
        "p",
        "decided",
        "trained parameters",
        "seconds a run",
    ]
    body = [_cells(row, scale) for row in table]
    for cells, row in zip(body, table, strict=True):
        if truncated and row.method in READ_WHOLE_TEXTS:
            cells[0] = f"{row.method} (reads whole texts)"
    measured = {row.forgetting.what for row in table if row.forgetting is not None}
    if measured:
        header.append(f"change of {measured.pop()}")
        for cells, row in zip(body, table, strict=True):
            cells.append("–" if row.forgetting is None else f"{row.forgetting.change:+.3f}")
    if any(row.failed for row in table):
        header.append("failed seeds")
        for cells, row in zip(body, table, strict=True):
            cells.append(", ".join(map(str, row.failed)))
    return markdown_table(header, body)


def sentences(table: Sequence[MethodRow], metric: str, chosen: str) -> list[str]:
    """Return in words how the chosen method compares with each of the others, and which seeds failed."""
    leads = [(row.method, row.lead) for row in table if row.lead is not None]
    lines = [_lead_sentence(lead, metric, chosen, method) for method, lead in leads]
    too_few = sorted({lead.units for _, lead in leads if lead.difference and not lead.has_enough_seeds})
    lines += [f"Undecided: {too_few_seeds(seeds)}" for seeds in too_few]
    for row in table:
        if row.failed:
            seeds = f"seed{'s' * (len(row.failed) > 1)} {', '.join(map(str, row.failed))}"
            lines.append(f"{row.method} failed with {seeds}: its {metric} is no better than the majority class's.")
    return lines


def _lead_sentence(lead: Comparison, metric: str, chosen: str, method: str) -> str:
    """Return a comparison in words: who is ahead, by how much, and whether that is decided."""
    scale = about(metric).scale
    unit = "" if scale == 1 else "points of "
    spread = f"{_points(lead.low, scale, '+')} to {_points(lead.high, scale, '+')}"
    points = _points(abs(lead.difference), scale)
    if not float(points):
        return f"{chosen} and {method} have equal {metric} ({spread}{unit and ' points'})."
    if lead.is_decided:
        verb = "beats" if lead.difference > 0 else "loses to"
        return f"{chosen} {verb} {method} by {points} {unit}{metric} ({spread}, {describe_p(lead.p_value)})."
    position = "ahead of" if lead.difference > 0 else "behind"
    return (
        f"{chosen} is {position} {method} by {points} {unit}{metric} ({spread}), "
        f"undecided ({describe_p(lead.p_value)}; {_why_undecided(lead)})."
    )


def _why_undecided(lead: Comparison) -> str:
    if not lead.has_enough_seeds:
        return f"{lead.seeds} seed{'s' * (lead.seeds != 1)} can never reach {LEVEL:g}"
    what = "seeds" if lead.p_over_seeds >= lead.p_over_examples else "test examples"
    return f"other {what} may reverse it"


def _forgetting(runs: Sequence[MethodResult]) -> Forgetting | None:
    """Return the mean forgetting over seeds; None where it was not measured."""
    measured = [cell.details.forgetting for cell in runs if cell.details.forgetting is not None]
    if not measured:
        return None
    before, after = (sum(getattr(item, side) for item in measured) / len(measured) for side in ("before", "after"))
    return replace(measured[0], before=before, after=after)


def _points(value: float, scale: float, sign: str = "") -> str:
    """Return a score as text: one decimal in points of a hundred, three decimals for other scales."""
    return f"{scale * value:{sign}.{3 if scale == 1 else 1}f}"


def _cells(row: MethodRow, scale: float) -> list[str]:
    """Return the cells of a row."""
    low, high = row.score.low, row.score.high
    spread = "–"
    if low is not None and high is not None:
        # A t interval does not know that a fraction is at most 1.
        spread = f"{_points(low, scale)} to {_points(min(high, 1.0) if scale > 1 else high, scale)}"
    lead = p = decided = ""
    if row.lead is not None:
        difference, lead_low, lead_high = (
            _points(value, scale, "+") for value in (row.lead.difference, row.lead.low, row.lead.high)
        )
        lead, p = f"{difference} ({lead_low} to {lead_high})", format_p(row.lead.p_value)
        decided = "yes" if row.lead.is_decided else "no"
    trained = "–" if row.trainable is None else f"{row.trainable:,}"
    return [row.method, _points(row.score.mean, scale), spread, lead, p, decided, trained, f"{row.seconds:.1f}"]
