"""Choose the learning rates of a study's first seed, without its test files.

    python docs/results/claims_rates.py studies/claims/objectives.yaml [--rates 1e-3 3e-3 1e-2]

A study that pre-trains: every pre-training is repeated with each of the rates, and the held-out loss decides. The
losses of one line can be compared; those of different objectives cannot. A study of ready checkpoints: every
fine-tuning is repeated with a third of its rate, its rate and three times its rate, and the score on validation rows
decides. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import headstart
from headstart.core import registry
from headstart.stages.runs.manifest import FinetuneManifest, PretrainManifest
from headstart.studies import study as stage
from headstart.studies.definition import Study
from headstart.studies.graph import Graph
from headstart.studies.run.expand import build

_FACTORS = (1 / 3, 1, 3)
_TEST_ROWS = 16
"""Scored by every fine-tuning, and not looked at here."""


def pretrainings(study: Study, graph: Graph) -> dict[str, dict[str, Any]]:
    """Return the recipes of the first seed, each named by the first system and context that use it."""
    recipes: dict[str, dict[str, Any]] = {}
    seen: set[str] = set()
    for cell in graph.cells:
        parents = [graph.nodes[name] for name in graph.nodes[cell.node].parents]
        for node in parents:
            if node.kind == "pretrain" and cell.seed == study.first_seed and node.id not in seen:
                seen.add(node.id)
                recipes[" ".join((cell.system.name, *cell.context))] = node.recipe
    return recipes


def finetunings(study: Study, graph: Graph) -> dict[str, dict[str, Any]]:
    """Return the recipes of the first seed that start from a ready checkpoint, by system and context."""
    return {
        " ".join((cell.system.name, *cell.context)): graph.nodes[cell.node].recipe
        for cell in graph.cells
        if graph.nodes[cell.node].kind == "finetune" and cell.seed == study.first_seed
    }


def held_out_loss(recipe: Mapping[str, Any], rate: float, output: Path) -> float:
    """Pre-train with a rate and return the loss on held-out text."""
    corpus = {**recipe["corpus"], "prepared": str(output.parent / "prepared")}
    training = {**recipe["training"], "learning_rate": rate}
    headstart.pretrain({**recipe, "corpus": corpus, "training": training, "output": str(output)}, quiet=True)
    return float(PretrainManifest.read(output).metrics.validation["loss"])


def validation_score(recipe: Mapping[str, Any], rate: float, output: Path) -> float:
    """Fine-tune with a rate and return the first score on validation rows, × 100."""
    changed = {
        "adaptation": {**recipe["adaptation"], "learning_rate": rate}, "output": str(output),
        "data": {**recipe["data"], "test_rows": _TEST_ROWS},
    }  # fmt: skip
    headstart.finetune({**recipe, **changed}, quiet=True)
    (scores,) = FinetuneManifest.read(output).validation[recipe["adaptation"]["name"]]
    return 100 * float(next(iter(scores.values())))


def own_rate(recipe: Mapping[str, Any]) -> float:
    """Return the rate of a fine-tuning: of its adaptation, or of its recipe."""
    section = recipe["adaptation"]
    default = registry.resolve("adaptations", section["name"]).Config.model_fields["learning_rate"].default
    return float(section.get("learning_rate") or default or recipe["training"]["learning_rate"])


def show(name: str, results: Mapping[float, float], best: float) -> None:
    """Print one line."""
    print(
        f"| {name} | " + " | ".join(f"{rate:g}: {value:.3f}" for rate, value in results.items()) + f" | {best:g} |",
        flush=True,
    )


def main() -> None:
    """Search every pre-training, or every fine-tuning, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--rates", type=float, nargs="*", default=[1e-3, 3e-3, 1e-2], help="of pre-training")
    parser.add_argument("--output", type=Path, default=Path("runs/claims-rates"))
    arguments = parser.parse_args()
    study = stage.load(arguments.study)
    graph, folder = build(study), arguments.output / arguments.study.stem
    print("| run | rate: held-out loss or validation score | | | best |\n|---|--:|--:|--:|--:|")
    if study.base.pretrain is not None:
        for name, recipe in pretrainings(study, graph).items():
            losses = {rate: held_out_loss(recipe, rate, _run(folder, name, rate)) for rate in arguments.rates}
            show(name, losses, min(losses, key=lambda rate: losses[rate]))
        return
    for name, recipe in finetunings(study, graph).items():
        rates = [float(f"{own_rate(recipe) * factor:.1g}") for factor in _FACTORS]
        scores = {rate: validation_score(recipe, rate, _run(folder, name, rate)) for rate in rates}
        show(name, scores, max(scores, key=lambda rate: scores[rate]))


def _run(folder: Path, name: str, rate: float) -> Path:
    return folder / f"{name}-{rate:g}".replace(" ", "-").replace("/", "-")


if __name__ == "__main__":
    main()
