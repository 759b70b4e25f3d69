"""Judge each claim of a study: confirmed, refuted or undecided, and how many more seeds would decide it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from headstart.evaluation.comparison import Comparison, PairedScores, compare
from headstart.evaluation.equivalence import equivalence
from headstart.evaluation.metrics import About
from headstart.evaluation.significance import LEVEL, describe_p, holm, smallest_p
from headstart.studies.contrast import Contrast
from headstart.studies.definition import Claim, Study, level_names
from headstart.studies.grid import Context, System
from headstart.studies.judge import reaching
from headstart.studies.judge.pairing import Resamples, difference_of_leads, pair
from headstart.studies.judge.power import MOST_SEEDS, TARGET, Spread, power, seeds_needed
from headstart.studies.judge.results import SCORE, CellScore, Results

Word = Literal["confirmed", "refuted", "undecided"]
Sides = tuple[list[System], list[System]]
Runs = list[dict[int, CellScore]]
"""The scores of several systems in one context, each by seed."""


@dataclass(frozen=True)
class Verdict:
    """A claim, the comparison it is judged by, and the verdict in one word."""

    claim: Claim
    word: Word
    comparison: Comparison | None
    p_value: float | None
    """One-sided, corrected for all claims of the study; the smaller direction where the claim is undecided."""
    smallest_p: float | None
    """The smallest corrected p-value that this many paired runs could have given."""
    seeds: int
    needed: int | None
    """Seeds with which the observed difference would be decided in four of five studies; None: out of reach."""
    power: float | None
    scale: float
    missing: int
    """Missing cells that the claim covers."""
    caveat: str = ""

    def sentence(self) -> str:
        """Return the verdict as a sentence or more."""
        text = f"“{self.claim.statement}” is {self.word}"
        if self.comparison is None:
            return f"{text}: {self.caveat or 'there are no finished cells to judge it by.'}"
        result, scale = self.comparison, self.scale
        difference, low, high = (
            f"{scale * value:+.{1 if scale > 1 else 3}f}" for value in (result.difference, result.low, result.high)
        )
        text += (
            f": {self._finding(difference)} ({low} to {high}) over {result.units} paired runs, "
            f"{'p unknown' if self.p_value is None else describe_p(self.p_value)} after Holm's correction"
        )
        if result.effect is not None:
            text += f", effect {result.effect:+.2f} standard deviations"
        parts = [f"{text}."]
        if self.word == "undecided":
            parts += self._what_would_decide(result)
        if self.missing:
            parts.append(f"{self.missing} of its cells are missing.")
        return " ".join([*parts, self.caveat]).rstrip()

    def _finding(self, difference: str) -> str:
        """Return what was found, up to its interval."""
        if Contrast.parse(self.claim.contrast).margin is not None:
            return f"{self.claim.contrast}, the difference is {difference}"
        if self.claim.versus:
            ends = (", ".join(map(str, levels.values())) for levels in (_at(self.claim), self.claim.versus))
            return f"the lead of {self.claim.contrast} at {next(ends)} exceeds that at {next(ends)} by {difference}"
        return f"{self.claim.contrast} by {difference}"

    def _what_would_decide(self, result: Comparison) -> list[str]:
        """Return why the claim is undecided, and what would change that."""
        parts = []
        if self.smallest_p is not None and self.smallest_p > LEVEL:
            parts.append(
                f"Undecided: {result.units} paired run{'s' * (result.units != 1)} can never reach p ≤ {LEVEL:g} "
                f"(smallest possible p after Holm's correction is {self.smallest_p:.3g})."
            )
        if result.sd is None:
            parts.append("One seed gives no spread over seeds; run two or more.")
        elif self.needed is None:
            parts.append(
                "Undecided: with this effect size and test set, more seeds would not change the verdict "
                f"(power < {TARGET:g} at {MOST_SEEDS} seeds)."
            )
        else:
            more = max(1, self.needed - self.seeds)
            seeds = f"about {more} more seed{'s' * (more != 1)}"
            parts.append(f"If the true difference is the observed one, {seeds} would decide it.")
        return parts


def judge(study: Study, results: Results, resamples: Resamples) -> list[Verdict]:
    """Judge every claim; each direction has its own 5 %, and Holm's correction covers all claims of the study."""
    evidence = [_evidence(study, claim, results, resamples) for claim in study.claims]
    verdicts = decided(
        study.claims,
        [item.finding for item in evidence],
        [item.scale for item in evidence],
        [item.missing for item in evidence],
    )
    return [replace(verdict, caveat=item.caveat) for verdict, item in zip(verdicts, evidence, strict=True)]


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


def decided(
    claims: Sequence[Claim], findings: Sequence[Finding | None], scales: Sequence[float], missing: Sequence[int]
) -> list[Verdict]:
    """Turn findings into verdicts."""
    better = holm([1.0 if item is None else min(1.0, item.p_confirmed) for item in findings])
    worse = holm([1.0 if item is None else min(1.0, item.p_refuted) for item in findings])
    floors = holm([1.0 if item is None else smallest_p(item.comparison.units, sides=1) for item in findings])
    verdicts = []
    for i, (claim, finding) in enumerate(zip(claims, findings, strict=True)):
        if finding is None:
            verdicts.append(Verdict(claim, "undecided", None, None, None, 0, None, None, scales[i], missing[i]))
            continue
        comparison = finding.comparison
        word: Word = "confirmed" if better[i] <= LEVEL else "refuted" if worse[i] <= LEVEL else "undecided"
        needed = reached = None
        if comparison.sd is not None:
            spread = Spread(
                comparison.sd, comparison.examples_error, comparison.residual, comparison.groups, len(claims)
            )
            reached = power(finding.distance, spread, comparison.seeds)
            if word == "undecided":
                needed = seeds_needed(finding.distance, spread)
        verdicts.append(
            Verdict(
                claim, word, comparison, min(better[i], worse[i]), floors[i], comparison.seeds, needed, reached,
                scales[i], missing[i],
            )
        )  # fmt: skip
    return verdicts


@dataclass(frozen=True)
class _Evidence:
    """What a claim is judged by."""

    finding: Finding | None
    scale: float
    """By what a table multiplies the difference."""
    missing: int
    caveat: str


def _evidence(study: Study, claim: Claim, results: Results, resamples: Resamples) -> _Evidence:
    """Compare the two sides of a claim over its contexts."""
    contrast = Contrast.parse(claim.contrast)
    metric = SCORE if contrast.outcome else contrast.metric
    if contrast.outcome:
        results = results.outcomes.get(contrast.outcome, Results())
    sides = [[s for s in results.systems if s.has(parts)] for parts in (contrast.better, contrast.worse)]
    partners = _partners(sides, contrast)
    pairs: dict[Context, PairedScores] = {}
    metrics: dict[Context, About] = {}
    pretrainings: tuple[set[str], set[str]] = set(), set()
    wheres = [claim.where] + ([{**claim.where, **claim.versus}] if claim.versus else [])
    contexts = [context for context in results.contexts if any(_is_covered(study, w, context) for w in wheres)]
    for context in contexts:
        runs = _runs(results, partners, context)
        paired = pair(*runs, resamples, metric) if all(runs) else None
        if paired is not None:
            pairs[context] = paired
            metrics[context] = next(iter(runs[0][0].values())).about_metric(metric)
            for seen, side in zip(pretrainings, runs, strict=True):
                seen.update(cell.pretraining for system in side for cell in system.values())
    concerned = {*sides[0], *sides[1]}
    missing = sum(item.cell.system in concerned and item.cell.context in contexts for item in results.missing)
    if len({metric.family for metric in metrics.values()}) > 1:
        return _Evidence(None, 100.0, missing, _unlike_kinds(metrics))
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
    compared = list(pairs.values()) if not claim.versus else _leads_compared(study, claim, pairs)
    return _Evidence(_finding(compared, contrast, scale), scale, missing, caveat)


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


def _leads_compared(study: Study, claim: Claim, pairs: Mapping[Context, PairedScores]) -> list[PairedScores]:
    """Return the differences between the leads at `where` and at `versus`, of contexts that agree in all other axes."""
    axes = [axis for axis in study.axes if axis not in study.compare]
    compared = []
    for context, first in pairs.items():
        levels = dict(zip(axes, context, strict=True))
        other = tuple({**levels, **{axis: level_names(level)[0] for axis, level in claim.versus.items()}}.values())
        second = pairs.get(other)
        if _is_covered(study, claim.where, context) and second is not None:
            compared.append(difference_of_leads(first, second))
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

    Where no systems match in this way, such as a network and an SVM, each side is compared as a whole.
    """
    groups: list[dict[tuple[str, ...], list[System]]] = [{}, {}]
    for side, parts, by_rest in zip(sides, (contrast.better, contrast.worse), groups, strict=True):
        for system in side:
            by_rest.setdefault(tuple(level for level in system.levels if level not in parts), []).append(system)
    matched = [(systems, groups[1][rest]) for rest, systems in groups[0].items() if rest in groups[1]]
    return matched or [(sides[0], sides[1])]


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


def _at(claim: Claim) -> dict[str, object]:
    """Return the levels of `where` on the axes of `versus`."""
    return {axis: claim.where[axis] for axis in claim.versus}


def _is_covered(study: Study, where: Mapping[str, Any], context: Context) -> bool:
    """Return whether a claim's `where` covers a context."""
    axes = [axis for axis in study.axes if axis not in study.compare]
    levels = dict(zip(axes, context, strict=True))
    return all(levels.get(axis) in level_names(selected) for axis, selected in where.items() if axis in levels)
