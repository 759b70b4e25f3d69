"""Reproduce docs/results/first-result.md: pre-train the mini encoder, fine-tune it on eight tasks, write the tables.

python docs/results/first_result.py [--jobs 2] [--only-table]

Every run is a `headstart` command with a recipe of recipes/wiki-mini. Finished runs are skipped, so the script can be
interrupted and restarted at any time.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pages import cost_table, headstart, is_finished, read, run_all, score, write

from headstart.evaluation.significance import describe_p

TASKS = ("sst2", "cola", "mrpc", "rte", "qnli", "stsb", "trec6", "subj")
LABELS = (500, 5000)
AT_5000 = ("training.budget=3 epochs", "training.batch_size=32")
METHODS = ("majority", "svm", "scratch", "features", "full")
PAGE = Path(__file__).with_name("first-result.md")


def output(task: str, labels: int) -> Path:
    """Return the output folder of one fine-tuning run."""
    return Path(f"runs/wiki-mini-{task}-{labels}")


def command(task: str, labels: int) -> list[str]:
    """Return the `headstart` arguments of one fine-tuning run."""
    extra = AT_5000 if labels > 500 else ()
    return [
        "finetune",
        f"recipes/wiki-mini/{task}.yaml",
        f"data.train_rows={labels}",
        f"output={output(task, labels)}",
        *extra,
    ]


def table(labels: int) -> str:
    """Return the table for one number of labels, and the number of tasks on which fine-tuning beats each baseline."""
    lines = [
        "| task (metric) | rows used | " + " | ".join(METHODS) + " | full − scratch | full − svm |",
        "|---|---|" + "---|" * (len(METHODS) + 2),
    ]
    wins = {"scratch": 0, "svm": 0}
    for task in TASKS:
        if not is_finished(output(task, labels)):
            lines.append(f"| {task} | – | " + " | ".join("not run" for _ in range(len(METHODS) + 2)) + " |")
            continue
        facts = read(output(task, labels))
        metric = facts["task"]["metrics"][0]
        cells = [score([run[metric] for run in facts["metrics"][method]]) for method in METHODS]
        leads = []
        for rival in ("scratch", "svm"):
            lead = facts["comparisons"][rival]
            clear = lead["p_value"] < 0.05 and lead["difference"] > 0
            wins[rival] += clear
            spread = f"{100 * lead['low']:+.1f} to {100 * lead['high']:+.1f}"
            text = f"{100 * lead['difference']:+.1f} ({spread}), {describe_p(lead['p_value'])}"
            leads.append(f"**{text}**" if clear else text)
        lines.append(f"| {task} ({metric}) | {facts['data']['train_rows']:,} | " + " | ".join(cells + leads) + " |")
    return "\n".join(lines) + (
        f"\n\nFull fine-tuning beats training from scratch with p < 0.05 on {wins['scratch']} of {len(TASKS)} tasks, "
        f"and the SVM on {wins['svm']}."
    )


def costs() -> str:
    """Return the table of measured costs, one row per part."""
    parts = {"pre-training": [Path("runs/wiki-mini")]}
    for labels in LABELS:
        done = [output(task, labels) for task in TASKS if is_finished(output(task, labels))]
        parts[f"fine-tuning, {labels} labels: {len(done)} tasks"] = done
    return cost_table(parts)


def main() -> None:
    """Run what is missing and write the tables between the markers of the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parallel runs, one thread each")
    parser.add_argument("--only-table", action="store_true", help="write the page from the finished runs")
    options = parser.parse_args()
    if not options.only_table:
        if headstart(["pretrain", "recipes/wiki-mini/pretrain.yaml"], os.cpu_count() or 1):
            sys.exit(1)
        run_all([command(task, labels) for labels in LABELS for task in TASKS], options.jobs)
    write(PAGE, {**{f"labels-{labels}": table(labels) for labels in LABELS}, "cost": costs()})


if __name__ == "__main__":
    main()
