"""What the page shows of attention heads: matrices by layer and head, and what switching heads off costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from headstart.evaluation.intervals import Estimate
from headstart.evaluation.report.content import Quoted, ReportSection, ReportTable
from headstart.stages.probe.attention_maps import Maps
from headstart.stages.probe.heads.costs import HeadCosts
from headstart.stages.probe.probe import ProbeScore

_COSTLIEST = 10
UNIT = "nats"


def matrix(
    caption: str, rows: Sequence[str], columns: Sequence[str], values: Maps, corner: str, decimals: int
) -> ReportTable:
    """Return a table of numbers, the larger the darker; NaN is a cell without a number."""
    known = np.nan_to_num(values)
    most = float(known.max()) or 1.0
    body = [
        [Quoted(name), *("–" if np.isnan(v) else f"{round(v, decimals) + 0.0:.{decimals}f}" for v in row)]
        for name, row in zip(rows, values, strict=True)
    ]
    shades = [[round(9 * max(0.0, v) / most) for v in row] for row in known.tolist()]
    return ReportTable(caption, [corner, *map(Quoted, columns)], body, [False, *[True] * len(columns)], shades)


def by_head(caption: str, values: Maps, decimals: int = 1) -> ReportTable:
    """Return a matrix with a row for each layer and a column for each head, counted from 1."""
    rows, columns = ([str(i + 1) for i in range(count)] for count in values.shape)
    return matrix(caption, rows, columns, values, "layer", decimals)


def cost_score(model: str, trained: HeadCosts, untrained: HeadCosts | None) -> ProbeScore:
    """Return the cost of the costliest head, beside that of the untrained network and the mean over heads."""
    beside = {
        "untrained": None if untrained is None else untrained.costliest().value,
        "mean_head": float(trained.means().mean()),
    }
    return ProbeScore(model, "costliest head switched off", trained.costliest(), beside, unit=UNIT)


def cost_section(
    model: str, trained: HeadCosts, untrained: HeadCosts, relations: Mapping[str, Sequence[str]]
) -> ReportSection:
    """Return what switching off each head costs.

    Args:
        model: its name.
        trained: the costs of the heads of the model.
        untrained: those of the same network untrained.
        relations: the relations that a head finds best, by its name (`layer 1, head 2`).
    """
    rows = cost_rows(trained, untrained)
    total = trained.layers * trained.heads
    harmless = sum(row["cost_low"] <= 0 for row in rows)
    count = f"all {total:,} heads" if len(rows) == total else f"a random sample of {len(rows):,} of {total:,} heads"
    notes = [
        "How much the loss per predicted token rises if the output of one head is set to zero (Michel et al. 2019), "
        f"for {count} on {len(trained.predictions):,} sentences with {int(trained.predictions.sum()):,} predicted "
        f"tokens. With all heads, the loss is {trained.loss:.3f} nats (untrained: {untrained.loss:.3f}).",
        f"The costliest head costs {_nats(trained.costliest())} nats if it is chosen on other sentences than it is "
        f"scored on (untrained: {_nats(untrained.costliest())}). The mean over heads is "
        f"{trained.means().mean():.3f} (untrained: {untrained.means().mean():.3f}). For {harmless:,} of {len(rows):,} "
        "heads, the 95 % interval (bootstrap over sentences) includes zero or lies below it: no cost is measurable "
        "here. Other heads may replace one that is missing, so the costs do not add up, and a head without a cost may "
        "still be used.",
    ]
    costs = np.full((trained.layers, trained.heads), np.nan)
    for (layer, head), value in zip(trained.switched, trained.means(), strict=True):
        costs[layer, head] = 100 * value
    costliest = sorted(rows, key=lambda row: -row["cost"])[:_COSTLIEST]
    body = [
        [
            (name := f"layer {row['layer']}, head {row['head']}"),
            _nats(Estimate(row["cost"], row["cost_low"], row["cost_high"])), f"{row['untrained_cost']:.3f}",
            Quoted(", ".join(relations.get(name, ())) or "–"),
        ]
        for row in costliest
    ]  # fmt: skip
    header = ["head", "cost, nats", "untrained", "best head of the relations"]
    tables = [
        by_head("Cost in nats × 100; rows are layers, columns heads; –: not switched off", costs),
        ReportTable(
            "The costliest heads; chosen on these sentences, so the first ones look costlier than they are", header,
            body, [False, True, True, False],
        ),
    ]  # fmt: skip
    return ReportSection(Quoted(f"Heads of {model} switched off"), notes, (), tables)


def _nats(estimate: Estimate) -> str:
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return "–"
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"


def cost_rows(trained: HeadCosts, untrained: HeadCosts) -> list[dict[str, Any]]:
    """Return the cost of each head with its interval, counted from 1, as plain types."""
    without = dict(zip(untrained.switched, untrained.means().tolist(), strict=True))
    rows = []
    for index, (layer, head) in enumerate(trained.switched):
        found = {f"cost{'' if k == 'value' else f'_{k}'}": v for k, v in asdict(trained.cost(index)).items()}
        rows.append({"layer": layer + 1, "head": head + 1, **found, "untrained_cost": without[layer, head]})
    return rows


def cost_numbers(trained: HeadCosts, untrained: HeadCosts) -> dict[str, Any]:
    """Return everything about switched-off heads as plain JSON types."""
    return {
        "sentences": len(trained.predictions), "predicted_tokens": int(trained.predictions.sum()),
        "heads": trained.layers * trained.heads, "loss": trained.loss, "untrained_loss": untrained.loss,
        "costliest": asdict(trained.costliest()), "untrained_costliest": asdict(untrained.costliest()),
        "switched_off": cost_rows(trained, untrained),
    }  # fmt: skip
