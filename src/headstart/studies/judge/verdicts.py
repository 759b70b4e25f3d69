"""The verdict on each claim of a study: confirmed, refuted or undecided, and how many more seeds it would take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headstart.evaluation.metrics import about
from headstart.evaluation.significance import describe_p, holm
from headstart.studies.contrast import Contrast
from headstart.studies.definition import Claim, Study, named
from headstart.studies.grid import Context, System
from headstart.studies.judge.comparison import Comparison, Pair, Resamples, compare, pair
from headstart.studies.judge.power import LEVEL, Spread, power, seeds_needed
from headstart.studies.judge.results import CellScore, Results

Word = Literal["confirmed", "refuted", "undecided"]


@dataclass(frozen=True)
class Verdict:
    """A claim, what was found, and the word."""

    claim: Claim
    word: Word
    comparison: Comparison | None
    p_value: float | None
    """That of the word, or of the nearer one where it is undecided; corrected for all claims of the study."""
    seeds: int
    needed: int | None
    """Seeds with which a difference as seen would be confirmed or refuted four times in five; None: out of reach."""
    power: float | None
    scale: float
    holes: int
    """Cells that the claim speaks of and that are missing."""
    caveat: str = ""

    def sentence(self) -> str:
        """Say the verdict in a sentence."""
        said = f"“{self.claim.statement}” is {self.word}"
        if self.comparison is None:
            return f"{said}: {self.caveat or 'there are no finished cells to judge it by.'}"
        found, scale = self.comparison, self.scale
        difference, low, high = (
            f"{scale * value:+.{1 if scale > 1 else 3}f}" for value in (found.difference, found.low, found.high)
        )
        said += (
            f": {self.claim.contrast} by {difference} ({low} to {high}) over {found.units} paired runs, "
            f"{'p unknown' if self.p_value is None else describe_p(self.p_value)} after Holm's correction"
        )
        if found.effect is not None:
            said += f", effect {found.effect:+.2f} standard deviations"
        said += "."
        if self.word == "undecided":
            said += f" {self._more()}"
        if self.holes:
            said += f" {self.holes} of its cells are missing."
        return f"{said} {self.caveat}".rstrip()

    def _more(self) -> str:
        assert self.comparison is not None
        if self.comparison.sd is None:
            return "One run tells nothing of the spread over seeds; two or more would."
        if self.needed is None:
            return "No number of seeds in reach would decide it: the difference is too small, or the examples too few."
        more = max(1, self.needed - self.seeds)
        return f"If the difference is as it looks, about {more} more seed{'s' * (more != 1)} would decide it."


def judge(study: Study, results: Results, resamples: Resamples) -> list[Verdict]:
    """Judge every claim; each word has its own 5 %, and Holm's correction runs over all claims of the study."""
    found = [_compared(study, claim, results, resamples) for claim in study.claims]
    made = decided(study.claims, [one[0] for one in found], [one[1] for one in found], [one[2] for one in found])
    return [replace(verdict, caveat=one[3]) for verdict, one in zip(made, found, strict=True)]


def decided(
    claims: Sequence[Claim], found: Sequence[Comparison | None], scales: Sequence[float], holes: Sequence[int]
) -> list[Verdict]:
    """Turn comparisons into verdicts."""
    better = holm([1.0 if one is None else min(1.0, one.p_better) for one in found])
    worse = holm([1.0 if one is None else min(1.0, one.p_worse) for one in found])
    verdicts = []
    for place, (claim, one) in enumerate(zip(claims, found, strict=True)):
        word: Word = "undecided"
        if one is not None and better[place] <= LEVEL:
            word = "confirmed"
        elif one is not None and worse[place] <= LEVEL:
            word = "refuted"
        p_value = None if one is None else min(better[place], worse[place])
        needed, chance, seeds = None, None, 0
        if one is not None:
            seeds = one.units // one.groups
            if one.sd is not None:
                spread = Spread(one.sd, one.examples_error, one.residual, one.groups, len(claims))
                chance = power(abs(one.difference), spread, seeds)
                if word == "undecided":
                    needed = seeds_needed(abs(one.difference), spread)
        verdicts.append(Verdict(claim, word, one, p_value, seeds, needed, chance, scales[place], holes[place]))
    return verdicts


def _compared(
    study: Study, claim: Claim, results: Results, resamples: Resamples
) -> tuple[Comparison | None, float, int, str]:
    """Return the comparison, what the table multiplies it by, the cells that are missing, and what is to be said."""
    contrast = Contrast.parse(claim.contrast)
    sides = [[s for s in results.systems if s.has(parts)] for parts in (contrast.better, contrast.worse)]
    contexts = [context for context in results.contexts if _spoken_of(study, claim, context)]
    partners = _partners(sides, contrast)
    pairs: list[Pair] = []
    scales: dict[float, None] = {}
    unwrap_peft: tuple[set[str], set[str]] = set(), set()
    for context in contexts:
        runs = _runs(results, partners, context)
        made = pair(*runs, resamples, contrast.metric) if all(runs) else None
        if made is not None:
            pairs.append(made)
            metric = next(iter(runs[0][0].values())).metric if contrast.metric == "score" else contrast.metric
            scales[about(metric).scale] = None
            for found, side in zip(unwrap_peft, runs, strict=True):
                found.update(outcome.pretraining for one in side for outcome in one.values())
    concerned = {*sides[0], *sides[1]}
    missing = sum(hole.cell.system in concerned and hole.cell.context in contexts for hole in results.holes)
    if len(scales) > 1:
        return None, 100.0, missing, "its contexts are scored in unlike units; name those of one unit by `where`."
    caveat = ""
    if unwrap_peft[0] != unwrap_peft[1] and not study.seed_pretraining:
        caveat = "Every pre-training in it ran once; what another would bring is not counted."
    return compare(pairs), next(iter(scales), 100.0), missing, caveat


Sides = tuple[list[System], list[System]]


def _partners(sides: Sequence[list[System]], contrast: Contrast) -> list[Sides]:
    """Return which systems are held against which: those that differ in what the contrast names, and in nothing else.

    Sides of which none are so alike, as a network and an SVM, are held against each other as a whole.
    """
    found: list[dict[tuple[str, ...], list[System]]] = [{}, {}]
    for side, parts, groups in zip(sides, (contrast.better, contrast.worse), found, strict=True):
        for system in side:
            groups.setdefault(tuple(level for level in system.levels if level not in parts), []).append(system)
    alike = [(ours, found[1][rest]) for rest, ours in found[0].items() if rest in found[1]]
    return alike or [(sides[0], sides[1])]


def _runs(
    results: Results, partners: Sequence[Sides], context: Context
) -> tuple[list[dict[int, CellScore]], list[dict[int, CellScore]]]:
    """Return the runs of both sides in a context: of partners that are all there, so that like is held against like.

    A system that was left out of the grid here, or that does not suit these rows, is not waited for.
    """
    awaited = {hole.cell.system for hole in results.holes if hole.cell.context == context}
    kept: tuple[list[dict[int, CellScore]], list[dict[int, CellScore]]] = ([], [])
    for sides in partners:
        there = [[system for system in side if results.of(system, context) or system in awaited] for side in sides]
        runs = [[results.of(system, context) for system in side] for side in there]
        if all(there) and all(one for side in runs for one in side):
            for place, side in enumerate(runs):
                kept[place].extend(side)
    return kept


def _spoken_of(study: Study, claim: Claim, context: Context) -> bool:
    axes = [axis for axis in study.axes if axis not in study.compare]
    levels = dict(zip(axes, context, strict=True))
    return all(levels.get(axis) in named(wanted) for axis, wanted in claim.where.items() if axis in levels)
