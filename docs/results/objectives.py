"""Repeat docs/results/objectives.md: every encoder objective at equal FLOPs, then four tasks with 1,000 labels each.

python docs/results/objectives.py [--jobs 2] [--only-table]

Every run is a `headstart` command on recipes/objectives/mini.yaml and recipes/wiki-mini; finished ones are not run
again, so the whole can be stopped and started at any moment.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pages import cost_table, is_finished, read, run_all, score, write

VARIANTS: dict[str, tuple[str, ...]] = {
    "masked_lm": (),
    "masked_lm, whole words": ("objective.whole_words=true",),
    "span_boundary": ("objective={name: span_boundary}",),
    "replaced_token": ("objective={name: replaced_token}",),
    "next_sentence": ("objective={name: next_sentence}",),
    "sentence_order": ("objective={name: sentence_order}",),
    "causal_lm": ("objective={name: causal_lm}", "backbone={family: decoder, size: mini, dropout: 0.0}"),
    "permuted_lm": ("objective={name: permuted_lm}", "backbone={family: xlnet, size: mini, dropout: 0.0}"),
}
TASKS = ("cola", "mrpc", "qnli", "sst2")
PAGE = Path(__file__).with_name("objectives.md")


def folder(variant: str) -> Path:
    """Return where a variant is pre-trained."""
    return Path("runs/objectives") / variant.replace(", ", "-").replace(" ", "-")


def pretraining(variant: str) -> list[str]:
    """Return the command that pre-trains a variant."""
    return ["pretrain", "recipes/objectives/mini.yaml", f"output={folder(variant)}", *VARIANTS[variant]]


def output(variant: str, task: str) -> Path:
    """Return the folder of one fine-tuning."""
    return Path(f"{folder(variant)}-{task}")


def finetuning(variant: str, task: str) -> list[str]:
    """Return the command that fine-tunes a variant; the company of baselines stands beside the first alone."""
    company = [] if variant == next(iter(VARIANTS)) else ["company=[]"]
    return [
        "finetune", f"recipes/wiki-mini/{task}.yaml", f"model={folder(variant)}", f"output={output(variant, task)}",
        "data.labels=1000", "training.budget=8 epochs", *company,
    ]  # fmt: skip


def table() -> str:
    """Return one row for each objective, and one for each baseline."""
    lines = ["| pre-trained by | held-out loss | tokens | " + " | ".join(TASKS) + " |", "|---" * (3 + len(TASKS)) + "|"]
    for variant in VARIANTS:
        if not is_finished(folder(variant)):
            continue
        facts = read(folder(variant))
        loss, tokens = facts["metrics"]["validation"]["loss"], facts["progress"]["tokens"]
        lines.append(f"| {variant} | {loss:.3f} | {tokens / 1e6:.1f} M | " + " | ".join(_cells(variant, "full")) + " |")
    first = next(iter(VARIANTS))
    for method in ("majority", "svm", "scratch"):
        lines.append(f"| *{method}* | – | – | " + " | ".join(_cells(first, method)) + " |")
    return "\n".join(lines)


def _cells(variant: str, method: str) -> list[str]:
    cells = []
    for task in TASKS:
        if not is_finished(output(variant, task)):
            cells.append("not run")
            continue
        facts = read(output(variant, task))
        metric = facts["task"]["metrics"][0]
        cells.append(score([run[metric] for run in facts["metrics"][method]]))
    return cells


def costs() -> str:
    """Return what both halves cost, measured."""
    before = [folder(variant) for variant in VARIANTS if is_finished(folder(variant))]
    after = [output(v, task) for v in VARIANTS for task in TASKS if is_finished(output(v, task))]
    return cost_table({f"{len(before)} pre-trainings": before, f"{len(after)} fine-tunings × 3 seeds": after})


def main() -> None:
    """Run what is missing and write the tables between the page's markers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at once, one thread each")
    parser.add_argument("--only-table", action="store_true", help="write the page from what is finished")
    options = parser.parse_args()
    if not options.only_table:
        run_all([pretraining(variant) for variant in VARIANTS], options.jobs)
        run_all([finetuning(variant, task) for variant in VARIANTS for task in TASKS], options.jobs)
    write(PAGE, {"objectives": table(), "cost": costs()})


if __name__ == "__main__":
    main()
