"""Choose the learning rate of each adaptation on validation rows, by the same small search for all of them.

    python docs/results/rates.py MODEL --rate 1e-4 --methods full lora gradual_unfreezing

Every method of studies/adaptation.yaml is trained on SST-2 as there (1,000 labels, 128 updates, seed 0) with a third of
its rate, its rate and three times its rate. Gradual unfreezing is searched over discounts as well, and then over
schedules of unfreezing. Only the 500 validation rows are scored. A finished run is not repeated. The last lines are the
`overrides` of the study; a rate that is the best by less than half a point is not worth a line.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import headstart
from headstart.core import registry
from headstart.stages.runs.manifest import FinetuneManifest

FULL_RATE = ("full", "top_layers", "gradual_unfreezing", "layerwise_decay", "l2_start", "rehearsal")
"""Methods without a default rate of their own, which are searched around `--rate`."""
OTHERS = ("lora", "adapters", "ia3", "bitfit", "prefix", "prompt")
SCHEDULES: tuple[dict[str, Any], ...] = ({"unfrozen_by": 0.25}, {"unfreeze": "plateau"})
"""Schedules beside the default, which unfreezes everything by half of the budget."""


def run(model: str, output: Path, settings: dict[str, Any], rate: float) -> float:
    """Fine-tune once and return the accuracy on the validation rows, in percent."""
    name = "-".join(f"{key}_{value}" for key, value in settings.items() if key != "name").replace("/", "_")
    folder = output / f"{settings['name']}-{rate:g}{'-' if name else ''}{name}"
    data = f"{os.environ.get('HEADSTART_DATA', 'data')}/tasks/sst2"
    evaluations = 8 if settings.get("unfreeze") == "plateau" else 2
    recipe = {
        "seed": 0, "seeds": 1, "output": str(folder), "model": model,
        "task": {"kind": "classify", "text": ["text"], "label": "label"},
        "data": {"train": f"{data}/train.parquet", "validation": 500, "test": f"{data}/test.parquet",
                 "train_rows": 1000, "test_rows": 16},
        "adaptation": {**settings, "learning_rate": rate}, "compare_with": [],
        "training": {"budget": "128 steps", "batch_size": 16, "max_length": 64, "eval_count": evaluations,
                     "warmup_ratio": 0.1},
    }  # fmt: skip
    headstart.finetune(recipe, quiet=True)
    (scores,) = FinetuneManifest.read(folder).validation[settings["name"]]
    return 100 * next(iter(scores.values()))


def search(model: str, output: Path, method: str, base_rate: float) -> list[tuple[float, float, dict[str, Any]]]:
    """Return accuracy, rate and further settings of every run, the best first."""
    own = registry.resolve("adaptations", method).Config.model_fields["learning_rate"].default
    rate = base_rate if own is None else own
    grid: list[dict[str, Any]] = [{}]
    if method == "gradual_unfreezing":
        grid = [{"discount": discount} for discount in (1.1, 1.3, 2.6)]
    results = []
    for factor in (1 / 3, 1, 3):
        for more in grid:
            tried = float(f"{rate * factor:.1g}")
            results.append((run(model, output, {"name": method, **more}, tried), tried, more))
            print(f"| {method} | {tried:g} | {more or ''} | {results[-1][0]:.1f} |", flush=True)
    if method == "gradual_unfreezing":
        _, best_rate, best = max(results, key=lambda result: result[0])
        for schedule in SCHEDULES:
            more = {**best, **schedule}
            results.append((run(model, output, {"name": method, **more}, best_rate), best_rate, more))
            print(f"| {method} | {best_rate:g} | {more} | {results[-1][0]:.1f} |", flush=True)
    return sorted(results, key=lambda result: -result[0])


def main() -> None:
    """Search every method and print a table and the overrides."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a checkpoint")
    parser.add_argument("--rate", type=float, default=1e-4, help="the rate of full fine-tuning to search around")
    parser.add_argument("--methods", nargs="*", default=[*FULL_RATE, *OTHERS])
    parser.add_argument("--output", type=Path, default=Path("runs/rates"))
    arguments = parser.parse_args()
    print("| method | rate | settings | validation accuracy |\n|---|--:|---|--:|")
    best = {name: search(arguments.model, arguments.output, name, arguments.rate)[0] for name in arguments.methods}
    print("\noverrides:")
    for name, (_, rate, more) in best.items():
        values = ", ".join(f"{key}: {value}" for key, value in {"learning_rate": f"{rate:g}", **more}.items())
        print(f"  - {{where: {{adaptation: {name}}}, adaptation: {{{values}}}}}")


if __name__ == "__main__":
    main()
