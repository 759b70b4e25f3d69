"""Repeat docs/results/first-result.md: pre-train the mini encoder, fine-tune eight tasks, write the table.

python docs/results/first_result.py [--jobs 2] [--only-table]

Every run is a `headstart` command on a recipe of recipes/wiki-mini; finished ones are not run again, so the
whole can be stopped and started at any moment.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

TASKS = ("sst2", "cola", "mrpc", "rte", "qnli", "stsb", "trec6", "subj")
LABELS = (500, 5000)
AT_5000 = ("training.budget=3 epochs", "training.batch_size=32")
METHODS = ("majority", "svm", "scratch", "features", "full")
PAGE = Path(__file__).with_name("first-result.md")


def output(task: str, labels: int) -> Path:
    """Return the folder of one fine-tuning."""
    return Path(f"runs/wiki-mini-{task}-{labels}")


def command(task: str, labels: int) -> list[str]:
    """Return the `headstart` command of one fine-tuning."""
    extra = AT_5000 if labels > 500 else ()
    return [
        "finetune",
        f"recipes/wiki-mini/{task}.yaml",
        f"data.labels={labels}",
        f"output={output(task, labels)}",
        *extra,
    ]


def headstart(arguments: list[str], threads: int) -> int:
    """Run one command with a share of the cores, and show it."""
    print("headstart", " ".join(arguments), flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    return subprocess.run([sys.executable, "-m", "headstart", *arguments], env=environment, check=False).returncode


def read(folder: Path) -> dict[str, Any]:
    """Return the manifest of a finished run."""
    facts: dict[str, Any] = json.loads((folder / "headstart.json").read_text(encoding="utf-8"))
    return facts


def table(labels: int) -> tuple[str, dict[str, int]]:
    """Return the table for one number of labels, and on how many tasks fine-tuning wins against what."""
    lines = [
        "| task (metric) | rows used | " + " | ".join(METHODS) + " | full − scratch | full − svm |",
        "|---|---|" + "---|" * (len(METHODS) + 2),
    ]
    wins = {"scratch": 0, "svm": 0}
    for task in TASKS:
        if not (output(task, labels) / "headstart.json").is_file():
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
            p = "< 0.001" if lead["p_value"] < 0.001 else f"= {lead['p_value']:.3f}"
            text = f"{100 * lead['difference']:+.1f} ({100 * lead['low']:+.1f} to {100 * lead['high']:+.1f}), p {p}"
            leads.append(f"**{text}**" if clear else text)
        lines.append(f"| {task} ({metric}) | {facts['data']['train_rows']:,} | " + " | ".join(cells + leads) + " |")
    return "\n".join(lines), wins


def score(values: list[float]) -> str:
    """Return mean and the half-width of the 95 % interval over seeds, in points."""
    from headstart.evaluation.significance import interval

    summary = interval(values)
    if not summary.sd or summary.high is None:
        return f"{100 * summary.mean:.1f}"
    return f"{100 * summary.mean:.1f} ± {100 * (summary.high - summary.mean):.1f}"


def costs() -> str:
    """Return what every part cost, measured."""
    from headstart.evaluation.cost import PriceTag

    rows = [("pre-training", [PriceTag.from_dict(read(Path("runs/wiki-mini"))["cost"])])]
    for labels in LABELS:
        done = [output(task, labels) for task in TASKS if (output(task, labels) / "headstart.json").is_file()]
        rows.append(
            (f"fine-tuning, {labels} labels: {len(done)} tasks", [PriceTag.from_dict(read(f)["cost"]) for f in done])
        )
    lines = ["| part | cost |", "|---|---|"]
    for name, tags in rows:
        if tags:
            lines.append(f"| {name} | {sum(tags[1:], tags[0]).sentence()} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing and write the tables between the page's markers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="fine-tunings at once, one thread each")
    parser.add_argument("--only-table", action="store_true", help="write the page from what is finished")
    options = parser.parse_args()
    if not options.only_table:
        if headstart(["pretrain", "recipes/wiki-mini/pretrain.yaml"], os.cpu_count() or 1):
            sys.exit(1)
        grid = [command(task, labels) for labels in LABELS for task in TASKS]
        with ThreadPoolExecutor(options.jobs) as pool:
            if any(pool.map(lambda arguments: headstart(arguments, 1), grid)):
                sys.exit(1)
    page = PAGE.read_text(encoding="utf-8")
    for labels in LABELS:
        text, wins = table(labels)
        text += (
            f"\n\nFine-tuned beats from scratch with p < 0.05 on {wins['scratch']} of {len(TASKS)} tasks, "
            f"and the SVM on {wins['svm']}."
        )
        page = between(page, f"labels-{labels}", text)
    PAGE.write_text(between(page, "cost", costs()), encoding="utf-8")


def between(page: str, name: str, text: str) -> str:
    """Replace what stands between the markers of a name."""
    before, rest = page.split(f"<!-- {name} -->")
    _, after = rest.split(f"<!-- /{name} -->")
    return f"{before}<!-- {name} -->\n{text}\n<!-- /{name} -->{after}"


if __name__ == "__main__":
    main()
