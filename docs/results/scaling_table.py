"""Measure the table of `headstart plan --best`: held-out loss by model size, vocabulary and tokens.

python docs/results/scaling_table.py [--sizes tiny mini small] [--vocabularies 8192 16384] [--tokens 1e6 4e6 16e6]

Every row is a complete run of recipes/objectives/mini.yaml with its own schedule. Finished runs are skipped, so the
script can be interrupted and restarted at any time. Existing rows of the table for other sizes are kept.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from pathlib import Path
from typing import Any

from pages import is_finished, read, run_all

from headstart.stages.plan.best_size import TABLE

RECIPE = "recipes/objectives/mini.yaml"


def row(folder: Path) -> dict[str, Any]:
    """Return the row of a finished run."""
    facts = read(folder)
    counts = facts["data"]["train"]
    return {
        "size": facts["recipe"]["backbone"]["size"],
        "vocab": counts["vocab"],
        "parameters": facts["parameters"],
        "tokens": facts["progress"]["tokens"],
        "loss": round(facts["metrics"]["validation"]["loss"], 4),
        "bytes_per_token": round(counts["bytes"] / counts["tokens"], 4),
    }


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["tiny", "mini", "small"])
    parser.add_argument("--vocabularies", nargs="+", type=int, default=[8192, 16384])
    parser.add_argument("--tokens", nargs="+", type=float, default=[1e6, 4e6, 16e6])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parallel runs, one thread each")
    parser.add_argument("--runs", type=Path, default=Path("runs/scaling"), help="folder of the runs")
    options = parser.parse_args()
    cells = {
        options.runs / f"{size}-{vocab}-{tokens:.0f}": [
            f"backbone.size={size}", f"tokenizer.vocab_size={vocab}", f"training.budget={tokens:.0f} tokens",
            "training.eval_count=0",
        ]
        for tokens, size, vocab in itertools.product(options.tokens, options.sizes, options.vocabularies)
    }  # fmt: skip
    run_all([["pretrain", RECIPE, f"output={folder}", *changes] for folder, changes in cells.items()], options.jobs)
    known = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.is_file() else {"rows": []}
    rows = {(r["size"], r["vocab"], r["tokens"]): r for r in known["rows"]}
    for found in (row(folder) for folder in cells if is_finished(folder)):
        rows[found["size"], found["vocab"], found["tokens"]] = found
    ordered = sorted(rows.values(), key=lambda row: (row["parameters"], row["vocab"], row["tokens"]))
    origin = {"measured by": "python docs/results/scaling_table.py", "recipe": RECIPE}
    table = {**origin, "kind": "modernbert", "objective": "masked_lm", "rows": ordered}
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
