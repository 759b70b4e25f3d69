"""Test the claims of a study several times while it grows, without more false verdicts than with one test.

Algorithm: each look has a share of the level of 5 %, by the spending function α · log(1 + (e - 1) · t), where t is the
share of the seeds that it sees. A look is tested at what it adds to the spent level. The probability of a false verdict
at any look is then at most the sum of the shares, whatever the tests are and however they depend on each other.
Paper: Lan & DeMets 1983, Discrete sequential boundaries for clinical trials
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

from headstart.evaluation.significance import LEVEL
from headstart.studies.definition import Study
from headstart.studies.judge.results import Results, Scores


@dataclass(frozen=True)
class Look:
    """A test of the claims after some seeds."""

    seeds: int
    level: float
    """The share of the 5 % that this look has."""

    def described(self, study: Study, *, tested: bool) -> str:
        """Return when a claim was or will be tested, as a sentence; nothing for a study without `looks`."""
        if not study.looks:
            return ""
        when = "Tested" if tested else "It is tested"
        return f"{when} after {self.seeds} of {study.seeds} seeds at p ≤ {self.level:.2g}."


def of(study: Study) -> list[Look]:
    """Return the looks of a study; the last one sees all seeds, and it is the only one if `looks` is empty."""
    counts = [0, *study.looks, study.seeds]
    spent = [LEVEL * math.log(1 + (math.e - 1) * count / study.seeds) for count in counts[:-1]] + [LEVEL]
    return [Look(count, after - before) for count, (before, after) in zip(counts[1:], pairwise(spent), strict=True)]


def until(results: Results, seed: int) -> Results:
    """Return the results of the seeds before this one."""
    return replace(
        results,
        scores=scores_until(results.scores, seed) if results.before is None else results.before(seed),
        missing=[item for item in results.missing if item.cell.seed < seed],
        outcomes={name: until(outcome, seed) for name, outcome in results.outcomes.items()},
    )


def scores_until(scores: Scores, seed: int) -> Scores:
    """Return the scores of the seeds before this one."""
    seen = {key: {own: cell for own, cell in runs.items() if own < seed} for key, runs in scores.items()}
    return {key: runs for key, runs in seen.items() if runs}
