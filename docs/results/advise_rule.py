"""Reproduce the simulation in docs/results/advise.md: does the rule of `headstart advise` find the best method?

python docs/results/advise_rule.py [--draws 5] [--labels 64 256]

No network is trained. The search of `headstart advise` runs as it is; its cells are drawn instead. A method is right on
a held-out row with the accuracy that docs/results/few-labels has for its number of training rows (interpolated over
the logarithm of the labels), plus a deviation for each round with the standard deviation of the study's seeds. Whether
two methods are right on a row is correlated (0.6, of normal variables). All learning rates of a method are equally
good. A cell takes the median seconds of its method in the study. The time budget is unlimited. What `advise` knows
about leads before a method runs is computed from the other tasks, so no task is judged by itself.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections import Counter
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from pages import write

from headstart.core.pages.markdown import markdown_table
from headstart.studies.advise.cells import CellResult
from headstart.studies.advise.methods import METHODS, Method
from headstart.studies.advise.prior import PRIORS, Belief
from headstart.studies.advise.rounds import ROUNDS
from headstart.studies.advise.search import Clock, Search

PAGE = Path(__file__).with_name("advise.md")
TABLES = PAGE.parent / "few-labels" / "tables"
NORMAL = NormalDist()
CORRELATION = 0.6
TRAIN, VALIDATION, HELD_OUT = 0.56, 0.08, 0.16
"""Shares of the labels that a round trains on, selects learning rates by, and holds out."""
WITHIN = 1.0
LEAST_SPREAD = 0.065


def read(name: str, *columns: str) -> dict[str, dict[str, dict[int, list[float]]]]:
    """Return numbers of a table of the study by task, method and number of labels."""
    found: dict[str, dict[str, dict[int, list[float]]]] = {}
    with (TABLES / name).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            cell = [float(row[column] or 0.0) for column in columns]
            found.setdefault(row["task"], {}).setdefault(row["system"], {})[int(row["labels"])] = cell
    return found


def at(curve: dict[int, list[float]], labels: float, column: int = 0) -> float:
    """Return a value of a learning curve, interpolated over the logarithm of the labels."""
    sizes = sorted(curve)
    return float(np.interp(math.log(labels), [math.log(n) for n in sizes], [curve[n][column] for n in sizes]))


def priors_of(scores: dict[str, dict[str, dict[int, list[float]]]]) -> dict[tuple[str, str], Belief]:
    """Return what is known from some tasks about leads, as in `prior.py`."""
    priors = {}
    for first, second in PRIORS:
        leads = [
            (methods[first][n][0] - methods[second][n][0]) / 100 for methods in scores.values() for n in methods[first]
        ]
        middle = statistics.median(leads)
        priors[first, second] = Belief(middle, max(LEAST_SPREAD, float(np.quantile(leads, 0.8413)) - middle))
    return priors


class Drawn:
    """Cells of one simulated search."""

    def __init__(
        self, scores: dict[str, dict[int, list[float]]], seconds: dict[str, float], labels: int, seed: int
    ) -> None:
        """Draw how hard each row is."""
        self.scores, self.seconds, self.labels, self.rng = scores, seconds, labels, np.random.default_rng(seed)
        self.hardness = self.rng.normal(size=(ROUNDS, 2, labels))

    def run(self, method: Method, rate: float | None, number: int) -> CellResult:
        """Return a cell with drawn predictions."""
        curve = self.scores[method.name]
        accuracy = at(curve, TRAIN * self.labels) + self.rng.normal() * at(curve, TRAIN * self.labels, 1)
        threshold = NORMAL.inv_cdf(min(99.5, max(0.5, accuracy)) / 100)
        right = []
        for part, share in ((0, HELD_OUT), (1, VALIDATION)):
            shared = self.hardness[number, part, : max(1, round(share * self.labels))]
            own = self.rng.normal(size=len(shared))
            right.append(CORRELATION**0.5 * shared + (1 - CORRELATION) ** 0.5 * own < threshold)
        predictions = ["a" if correct else "b" for correct in right[0]]
        score, validation = (float(part.mean()) for part in right)
        return CellResult(
            "accuracy",
            ["a"] * len(predictions),
            predictions,
            score,
            validation,
            self.seconds[method.name],
            is_new=False,
        )


def simulate(labels: int, draws: int, scores: Any, costs: Any, without_priors: bool) -> list[list[str]]:
    """Return a row of the table for each task."""
    seconds = {
        name: statistics.median(costs[task][name][labels][0] for task in costs if labels in costs[task][name])
        for name in (method.name for method in METHODS)
    }
    everything = sum(ROUNDS * max(1, len(method.rates)) * seconds[method.name] for method in METHODS)
    rows = []
    for task, methods in scores.items():
        if labels not in methods["contrast"]:
            continue
        true = {name: curve[labels][0] for name, curve in methods.items()}
        priors = {} if without_priors else priors_of({name: curve for name, curve in scores.items() if name != task})
        choices, behind, spent = Counter[str](), [], []
        for draw in range(draws):
            cells = Drawn(methods, seconds, labels, draw)
            search = Search(
                cells.run, lambda method: list(method.rates) or [None], lambda *_: 1.0, Clock(math.inf), priors
            )
            search.try_methods(METHODS)
            choice = search.finished(METHODS).best_network.method.name
            choices[choice] += 1
            behind.append(max(true.values()) - true[choice])
            spent.append(search.clock.spent / everything)
        row = [
            task, str(labels), max(true, key=true.__getitem__),
            ", ".join(f"{name} {count}" for name, count in choices.most_common()),
            f"{sum(value <= WITHIN for value in behind)} of {draws}", f"{statistics.mean(behind):.1f}",
            f"{statistics.mean(spent):.0%}",
        ]  # fmt: skip
        print(*row, sep=" | ", flush=True)
        rows.append(row)
    return rows


def main() -> None:
    """Simulate, and write the table into the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--labels", nargs="+", type=int, default=[64, 256])
    parser.add_argument("--without-priors", action="store_true", help="judge by the held-out rows alone")
    given = parser.parse_args()
    scores, costs = read("table.csv", "mean", "sd"), read("costs.csv", "seconds a run")
    rows = [
        row for labels in given.labels for row in simulate(labels, given.draws, scores, costs, given.without_priors)
    ]
    header = ["task", "labels", "best", "choices", "within a point", "points behind", "cost of running all"]
    write(
        PAGE,
        {
            "rule-without-priors" if given.without_priors else "rule": markdown_table(
                header, rows, [False, True, False, False, True, True, True]
            )
        },
    )


if __name__ == "__main__":
    main()
