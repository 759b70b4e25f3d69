"""Choose the learning rate of each pre-training of a study by its held-out loss.

    python docs/results/claims_rates.py studies/claims/objectives.yaml [--rates 1e-3 3e-3 1e-2]

Every pre-training of the study's first seed is repeated with each rate. Finished runs are not repeated. No labels are
read. The losses of one line can be compared; those of different objectives cannot.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import headstart
from headstart.stages.runs.manifest import PretrainManifest
from headstart.studies import study as stage
from headstart.studies.run.expand import build


def pretrainings(path: Path) -> dict[str, dict[str, Any]]:
    """Return the recipes of the first seed, each named by the first system that uses it."""
    study = stage.load(path)
    graph = build(study)
    recipes: dict[str, dict[str, Any]] = {}
    seen: set[str] = set()
    for cell in graph.cells:
        parents = [graph.nodes[name] for name in graph.nodes[cell.node].parents]
        for node in parents:
            if node.kind == "pretrain" and cell.seed == study.first_seed and node.id not in seen:
                seen.add(node.id)
                recipes[cell.system.name] = node.recipe
    return recipes


def held_out_loss(recipe: dict[str, Any], rate: float, output: Path) -> float:
    """Pre-train with a rate and return the loss on held-out text."""
    corpus = {**recipe["corpus"], "prepared": str(output.parent / "prepared")}
    training = {**recipe["training"], "learning_rate": rate}
    headstart.pretrain({**recipe, "corpus": corpus, "training": training, "output": str(output)}, quiet=True)
    return float(PretrainManifest.read(output).metrics["loss"])


def main() -> None:
    """Search every pre-training and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--rates", type=float, nargs="*", default=[1e-3, 3e-3, 1e-2])
    parser.add_argument("--output", type=Path, default=Path("runs/claims-rates"))
    arguments = parser.parse_args()
    print("| pre-training | " + " | ".join(f"{rate:g}" for rate in arguments.rates) + " | best |")
    print("|---|" + "--:|" * (len(arguments.rates) + 1))
    for name, recipe in pretrainings(arguments.study).items():
        folder = arguments.output / arguments.study.stem
        losses = {rate: held_out_loss(recipe, rate, folder / f"{name}-{rate:g}") for rate in arguments.rates}
        best = min(losses, key=lambda rate: losses[rate])
        print(f"| {name} | " + " | ".join(f"{loss:.3f}" for loss in losses.values()) + f" | {best:g} |", flush=True)


if __name__ == "__main__":
    main()
