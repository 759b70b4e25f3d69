"""Gather what a claim is judged by: its two sides, compared over its contexts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headstart.evaluation.comparison import Comparison, PairedScores, compare
from headstart.evaluation.equivalence import equivalence
from headstart.evaluation.metrics import About
from headstart.studies.contrast import Contrast
from headstart.studies.definition import Claim, Study, level_names
from headstart.studies.grid import Context, System
from headstart.studies.judge import reaching, units
from headstart.studies.judge.pairing import Resamples, difference_of_leads, pair
from headstart.studies.judge.results import SCORE, CellScore, Results

Sides = tuple[list[System], list[System]]
Runs = list[dict[int, CellScore]]
"""The scores of several systems in one context, each by seed."""


@dataclass(frozen=True)
class Finding:
    """A comparison, and how it bears on the claim."""

    comparison: Comparison
    p_confirmed: float
    p_refuted: float
    distance: float
    """How far the difference is from the value that a test compares it with: zero, or an end of the margin."""

    @classmethod
    def of(cls, comparison: Comparison) -> Finding:
        """Take the comparison of a claim that the first side is better."""
        return cls(comparison, comparison.p_better, comparison.p_worse, abs(comparison.difference))


@dataclass(frozen=True)
class Evidence:
    """What a claim is judged by."""

    finding: Finding | None
    """None if there is nothing to compare."""
    scale: float
    """By what a table multiplies the difference."""
    missing: int = 0
    """Missing cells that the claim covers."""
    awaited: int = 0
    """Those of them that did not fail, but have not run yet."""
    caveat: str = ""
    untrained: bool = False
    """Neither side is trained, so that more seeds would not change anything."""


def gather(study: Study, claim: Claim, results: Results, resamples: Resamples) -> Evidence:
    """Compare the two sides of a claim over its contexts."""
    contrast = Contrast.parse(claim.contrast)
    metric = SCORE if contrast.outcome else contrast.metric
    if contrast.outcome:
        results = results.outcomes.get(contrast.outcome, Results())
    sides = [[s for s in results.systems if s.has(parts)] for parts in (contrast.better, contrast.worse)]
    partners = _partners(sides, contrast)
    pairs: dict[Context, PairedScores] = {}
    metrics: dict[Context, About] = {}
    cells: dict[Context, list[CellScore]] = {}
    pretrainings: tuple[set[str], set[str]] = set(), set()
    contexts = [context for context in results.contexts if covers(study, claim, context)]
    for context in contexts:
        runs = _runs(results, partners, context)
        paired = pair(*runs, resamples, metric) if all(runs) else None
        if paired is not None:
            pairs[context] = paired
            cells[context] = [cell for side in runs for system in side for cell in system.values()]
            metrics[context] = next(iter(runs[0][0].values())).about_metric(metric)
            for seen, side in zip(pretrainings, runs, strict=True):
                seen.update(cell.pretraining for system in side for cell in system.values())
    concerned = {*sides[0], *sides[1]}
    missing = [item for item in results.missing if item.cell.system in concerned and item.cell.context in contexts]
    counts = len(missing), sum(item.reason is None for item in missing)
    if len({metric.family for metric in metrics.values()}) > 1:
        return Evidence(None, 100.0, *counts, _unlike_kinds(metrics))
    caveat = ""
    if contrast.level is not None:
        never = reaching.never_reached(results, [*sides[0], *sides[1]])
        once = "" if study.seed_pretraining else "Each pre-training ran once, which is one run."
        parts = ("Differences are in million tokens.", never, once, *_left_out(results, contrast))
        caveat = " ".join(part for part in parts if part)
    elif contrast.probe is not None:
        caveat = _probe_caveat(study, results, contrast)
    elif pretrainings[0] != pretrainings[1] and not study.seed_pretraining:
        caveat = "Each pre-training ran once, so the variation between pre-training runs is not included."
    scale = next(iter(metrics.values())).scale if metrics else 100.0
    compared: Mapping[tuple[Context, ...], PairedScores] = {(context,): item for context, item in pairs.items()}
    if claim.versus:
        compared = _leads_compared(study, claim, pairs)
    judged = list(compared.values())
    untrained = bool(compared) and all(units.are_untrained(cells[context]) for key in compared for context in key)
    if untrained:
        judged = units.by_test_rows(compared, cells)
        caveat = f"{_untrained_caveat(judged)} {caveat}".rstrip()
    return Evidence(_finding(judged, contrast, scale), scale, *counts, caveat, untrained)


def _untrained_caveat(pairs: Sequence[PairedScores]) -> str:
    """Return what the units of a claim are in which neither side is trained."""
    return (
        "Neither side is trained, so all seeds are one run, and the paired runs are test sets that share no rows: "
        f"{len({item.group for item in pairs})} in {len(pairs)} context{'s' * (len(pairs) != 1)}."
    )


def _probe_caveat(study: Study, results: Results, contrast: Contrast) -> str:
    """Return what limits a claim on a probe: models that ran once, different measures, models without a figure."""
    parts = []
    if not study.seed_pretraining:
        parts.append("A probe of a model that was trained once is one run; `seed_pretraining: true` gives more.")
    names = [
        {cell.metric for (system, _), runs in results.scores.items() if system.has(side) for cell in runs.values()}
        for side in (contrast.better, contrast.worse)
    ]
    if all(names) and names[0] != names[1]:
        parts.append(f"The sides have different measures: {', '.join(sorted(names[0] | names[1]))}.")
    return " ".join([*parts, *_left_out(results, contrast)])


def _left_out(results: Results, contrast: Contrast) -> list[str]:
    """Return why systems that a contrast names have no result."""
    reasons = {
        (system.name, why)
        for (system, _), why in results.left_out.items()
        if system.has(contrast.better) or system.has(contrast.worse)
    }
    return [f"{name} is left out: {why.removesuffix('.')}." for name, why in sorted(reasons)]


def _finding(pairs: Sequence[PairedScores], contrast: Contrast, scale: float) -> Finding | None:
    comparison = compare(pairs)
    if comparison is None or contrast.margin is None:
        return None if comparison is None else Finding.of(comparison)
    margin = contrast.margin / scale
    return Finding(comparison, *equivalence(pairs, margin), abs(margin - abs(comparison.difference)))


def _leads_compared(
    study: Study, claim: Claim, pairs: Mapping[Context, PairedScores]
) -> dict[tuple[Context, ...], PairedScores]:
    """Return the differences between the leads at `where` and at `versus`, of contexts that agree in all other axes."""
    axes = [axis for axis in study.axes if axis not in study.compare]
    compared: dict[tuple[Context, ...], PairedScores] = {}
    for context, first in pairs.items():
        levels = dict(zip(axes, context, strict=True))
        other = tuple({**levels, **{axis: level_names(level)[0] for axis, level in claim.versus.items()}}.values())
        second = pairs.get(other)
        if _is_covered(study, claim.where, context) and second is not None:
            compared[context, other] = difference_of_leads(first, second)
    return compared


def _unlike_kinds(metrics: Mapping[Context, About]) -> str:
    """Return why no mean is formed over contexts whose metrics are of different kinds, and what to do."""
    families: dict[str, list[str]] = {}
    for context, metric in metrics.items():
        families.setdefault(metric.family, []).append("/".join(context))
    kinds = "; ".join(f"{family}: {', '.join(contexts)}" for family, contexts in families.items())
    return (
        f"no mean was formed, because its contexts are scored by metrics of different kinds ({kinds}). "
        "Restrict the claim to contexts of one kind with `where`, or name one metric with `on mean(accuracy)`."
    )


def _partners(sides: Sequence[list[System]], contrast: Contrast) -> list[Sides]:
    """Return which systems are compared with which: those that differ only in the levels that the contrast names.

    Where no systems match in this way, such as a network and an SVM, each side is compared as a whole, without the
    baselines of other networks: the network from scratch is compared with the same network after pre-training.
    """
    groups: list[dict[tuple[str, ...], list[System]]] = [{}, {}]
    for side, parts, by_rest in zip(sides, (contrast.better, contrast.worse), groups, strict=True):
        for system in side:
            by_rest.setdefault(tuple(level for level in system.levels if level not in parts), []).append(system)
    matched = [(systems, groups[1][rest]) for rest, systems in groups[0].items() if rest in groups[1]]
    return matched or [(_of_same_network(*sides), _of_same_network(*reversed(sides)))]


def _of_same_network(side: list[System], others: list[System]) -> list[System]:
    """Return the systems of a side without baselines whose network no system of the other side has."""
    own = [s for s in side if s.baseline is None or any(set(s.levels) <= set(other.levels) for other in others)]
    return own or side


def _runs(results: Results, partners: Sequence[Sides], context: Context) -> tuple[Runs, Runs]:
    """Return the runs of both sides in a context, of partners that are complete, so that both sides stay comparable.

    A system that the grid leaves out here, or that does not apply to these rows, is not waited for.
    """
    awaited = {item.cell.system for item in results.missing if item.cell.context == context}
    kept: tuple[Runs, Runs] = ([], [])
    for sides in partners:
        present = [[system for system in side if results.of(system, context) or system in awaited] for side in sides]
        runs = [[results.of(system, context) for system in side] for side in present]
        if all(present) and all(system for side in runs for system in side):
            for kept_side, side in zip(kept, runs, strict=True):
                kept_side.extend(side)
    return kept


def covers(study: Study, claim: Claim, context: Context) -> bool:
    """Return whether a claim covers a context, by its `where` or its `versus`."""
    wheres = [claim.where, {**claim.where, **claim.versus}]
    return any(_is_covered(study, where, context) for where in wheres)


def _is_covered(study: Study, where: Mapping[str, Any], context: Context) -> bool:
    """Return whether a claim's `where` covers a context."""
    axes = [axis for axis in study.axes if axis not in study.compare]
    levels = dict(zip(axes, context, strict=True))
    return all(levels.get(axis) in level_names(selected) for axis, selected in where.items() if axis in levels)
