"""The content of `advice.json`: what was measured, as plain values from which the page is written."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import add
from typing import Any

from headstart.core import registry
from headstart.evaluation.cost import PriceTag
from headstart.evaluation.intervals import bootstrap
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.studies.advise.curve import LearningCurve
from headstart.studies.advise.final import lead_facts, weights_size
from headstart.studies.advise.search import Clock, SearchResult, TriedMethod, compare_methods

MORE_LABELS = 100


def of_data(rounds: Mapping[str, Any], base: FinetuneRecipe, final: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known about the rows, from the manifests of the rounds and of the final model."""
    splits = {name: final["data"][f"{name}_rows"] for name in ("train", "validation", "test")}
    return {
        "data": rounds["facts"], "warnings": rounds["warnings"], "splits": splits, "rounds": rounds["rows"],
        "task": registry.name_of("tasks", base.task), "checkpoint": base.model,
    }  # fmt: skip


def of_search(outcome: SearchResult, clock: Clock) -> dict[str, Any]:
    """Return the methods, the choice and the costs."""
    ran = [result for result in outcome.results if result.rounds]
    tags = [cell.cost for result in outcome.results for cell in result.cells]
    metric = next(iter(ran[0].rounds.values())).metric
    chosen = outcome.best_network
    leads = {}
    for result in ran:
        lead = compare_methods(result, chosen) if result is not chosen else None
        leads[result.method.name] = None if lead is None else lead_facts(lead)
    return {
        "metric": metric,
        "methods": [{**_row(result), "over_chosen": leads[result.method.name]} for result in ran],
        "left_out": {result.method.name: result.note for result in outcome.results if not result.rounds},
        "chosen": chosen.method.name,
        "best": outcome.best.method.name,
        "stopped": outcome.stopped,
        "not_tried": outcome.not_tried,
        "seconds": {"budget": clock.budget, "spent": clock.spent},
        "cost": reduce(add, map(_without_unknown_energy, tags)).to_dict(),
    }


def _without_unknown_energy(tag: PriceTag) -> PriceTag:
    """Return a price tag whose energy counts as zero if it was not measured: baselines take seconds."""
    return tag if tag.kwh is not None else PriceTag.from_dict({**tag.to_dict(), "kwh": 0.0, "co2e_kg": 0.0})


def _row(result: TriedMethod) -> dict[str, Any]:
    gold, predictions = result.pooled()
    cell = next(iter(result.rounds.values()))
    score = bootstrap(cell.metric, gold, predictions)
    timed = [(c.details.predict_seconds, len(c.gold)) for c in result.rounds.values() if c.details.predict_seconds]
    tried = {
        f"{rate:g}": sum(c.validation for c in cells.values()) / len(cells)
        for rate, cells in result.tried.items() if rate is not None
    }  # fmt: skip
    cost = result.cost
    return {
        "method": result.method.name,
        "adaptation": result.method.adaptation,
        "teacher": None if result.method.teacher is None else result.method.teacher.method.name,
        "adapted": [c.details.adapted["step"] for c in result.rounds.values() if c.details.adapted],
        "rate": result.rate,
        "score": score.value,
        "low": score.low,
        "high": score.high,
        "rows": len(gold),
        "rounds": len(result.rounds),
        "seconds": result.seconds,
        "kwh": cost.kwh,
        "money": cost.money,
        "currency": cost.currency,
        "milliseconds": 1000 * sum(s for s, _ in timed) / sum(n for _, n in timed) if timed else None,
        "megabytes": weights_size(result),
        "is_network": result.method.is_network,
        "compared_with": result.compared_with,
        "lead": None if result.lead is None else lead_facts(result.lead),
        "tried": tried,
        "note": result.note,
    }


def of_curve(learning: LearningCurve | str, rows: int) -> dict[str, Any]:
    """Return the learning curve, and what further labels are expected to buy at the size of the final training."""
    if isinstance(learning, str):
        return {"reason": learning}
    points = [
        {"rows": point.rows, "round": point.round, "score": learning.sign * point.score} for point in learning.points
    ]
    values: dict[str, Any] = {"method": learning.method, "points": points}
    if learning.fitted is None:
        return {**values, "reason": "too few scores to fit a curve"}
    gain = learning.fitted.gain(rows, rows + MORE_LABELS)
    fitted, most = [], max(point.rows for point in learning.points)
    # The rounds differ by a few rows; the largest size represents all of them.
    measured = {point.rows for point in learning.points if 2 * point.rows <= most or point.rows == most}
    for size in sorted({*measured, rows, rows + MORE_LABELS, 2 * rows}):
        band = learning.fitted.score(size)
        ends = sorted((learning.sign * band.low, learning.sign * band.high))
        fitted.append({"rows": size, "score": learning.sign * band.value, "low": ends[0], "high": ends[1]})
    return {
        **values, "fitted": fitted, "rows": rows, "more": MORE_LABELS,
        "gain": {"value": gain.value, "low": gain.low, "high": gain.high},
    }  # fmt: skip
