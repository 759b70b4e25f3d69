"""Judge each claim of a study: confirmed, refuted or undecided, and how many more seeds would decide it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headstart.evaluation.comparison import Comparison
from headstart.evaluation.significance import LEVEL, describe_p, holm, smallest_p
from headstart.studies.contrast import Contrast
from headstart.studies.definition import Claim, Study
from headstart.studies.judge import looks
from headstart.studies.judge.evidence import Evidence, gather
from headstart.studies.judge.pairing import Resamples
from headstart.studies.judge.power import MOST_SEEDS, TARGET, Spread, power, seeds_needed
from headstart.studies.judge.results import Results

Word = Literal["confirmed", "refuted", "undecided"]


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
    level: float = LEVEL
    """What the p-value is compared with."""
    look: str = ""
    """After how many seeds the claim was tested; empty if the study has no `looks`."""
    spread: Spread | None = None
    distance: float = 0.0
    """How far the difference is from the value that it is tested against."""
    untrained: bool = False
    """Neither side is trained, so that more seeds would not change anything."""

    def chance(self, seeds: int) -> float:
        """Return the power of a test with more seeds, if the true difference is the observed one."""
        if self.spread is None:
            return 0.0
        return power(self.distance, self.spread, self.seeds if self.untrained else seeds)

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
        return " ".join(part for part in (*parts, self.look, self.caveat) if part)

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
        if self.smallest_p is not None and self.smallest_p > self.level:
            parts.append(
                f"Undecided: {result.units} paired run{'s' * (result.units != 1)} can never reach p ≤ {self.level:.2g} "
                f"(smallest possible p after Holm's correction is {self.smallest_p:.3g})."
            )
        if self.untrained:
            parts.append("More seeds would not change the verdict, but more test sets that share no rows may.")
        elif result.sd is None:
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
    """Judge every claim; each direction has its own 5 %, and Holm's correction covers all claims of the study.

    With `looks`, the claims are tested at each of them, on its seeds alone and at its share of the 5 %, as soon as all
    their cells have run. A claim that was decided is not tested again, so later seeds cannot change its verdict.
    """
    verdicts: dict[int, Verdict] = {}
    for look in looks.of(study):
        undecided = [i for i in range(len(study.claims)) if i not in verdicts or verdicts[i].word == "undecided"]
        claims = [study.claims[i] for i in undecided]
        seen = looks.until(results, study.first_seed + look.seeds) if study.looks else results
        evidence = [gather(study, claim, seen, resamples) for claim in claims]
        found = decided(claims, evidence, look.level, only_complete=bool(study.looks))
        for i, verdict, item in zip(undecided, found, evidence, strict=True):
            if i not in verdicts or not item.awaited:
                verdicts[i] = replace(verdict, look=look.described(study, tested=not item.awaited))
    return [verdicts[i] for i in range(len(study.claims))]


def decided(
    claims: Sequence[Claim], evidence: Sequence[Evidence], level: float = LEVEL, *, only_complete: bool = False
) -> list[Verdict]:
    """Turn evidence into verdicts.

    Args:
        claims: the claims, which share Holm's correction.
        evidence: what each is judged by.
        level: the probability of a false verdict that is accepted.
        only_complete: leave claims undecided that wait for cells.
    """
    tested = [None if only_complete and item.awaited else item.finding for item in evidence]
    better = holm([1.0 if item is None else min(1.0, item.p_confirmed) for item in tested])
    worse = holm([1.0 if item is None else min(1.0, item.p_refuted) for item in tested])
    floors = holm([1.0 if item is None else smallest_p(item.comparison.units, sides=1) for item in tested])
    verdicts = []
    for i, (claim, item) in enumerate(zip(claims, evidence, strict=True)):
        finding = item.finding
        if finding is None:
            empty = Verdict(claim, "undecided", None, None, None, 0, None, None, item.scale, item.missing, item.caveat)
            verdicts.append(empty)
            continue
        comparison = finding.comparison
        word: Word = "confirmed" if better[i] <= level else "refuted" if worse[i] <= level else "undecided"
        needed = reached = spread = None
        if comparison.sd is not None:
            spread = Spread(
                comparison.sd, comparison.examples_error, comparison.residual, comparison.groups,
                len(claims) * LEVEL / level,
            )  # fmt: skip
            reached = power(finding.distance, spread, comparison.seeds)
            if word == "undecided" and not item.untrained:
                needed = seeds_needed(finding.distance, spread)
        verdicts.append(
            Verdict(
                claim, word, comparison, None if tested[i] is None else min(better[i], worse[i]),
                None if tested[i] is None else floors[i], comparison.seeds, needed, reached, item.scale, item.missing,
                item.caveat, level, spread=spread, distance=finding.distance, untrained=item.untrained,
            )
        )  # fmt: skip
    return verdicts


def _at(claim: Claim) -> dict[str, object]:
    """Return the levels of `where` on the axes of `versus`."""
    return {axis: claim.where[axis] for axis in claim.versus}
