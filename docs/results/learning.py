"""Write docs/results/learning.md: what learns more in the same time? Mask rate, optimiser, schedule, growing batches.

python docs/results/learning.py [--minutes 15] [--seeds 3] [--jobs 2] [--only-table]

Every run is `headstart pretrain recipes/objectives/mini.yaml` with one change and a whole schedule of its own; all are
judged by the loss at 15 % masked tokens on held-out rows of 128, whatever they were trained with. A seed draws weights,
order, masks and the held-out documents, so that variants are compared seed by seed. The first one runs twice as long
too: what a doubling of its time buys tells what a difference in loss is worth in time. Finished runs are not run again,
so the whole can be stopped and started at any moment. Run it on a machine that does nothing else: time is the measure.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from pathlib import Path
from random import Random

from pages import is_finished, read, run_all

RECIPE = "recipes/objectives/mini.yaml"
VARIANTS: dict[str, tuple[str, ...]] = {
    "15 % masked, Muon": (),
    "20 % masked": ("objective.rate=0.2",),
    "30 % masked": ("objective.rate=0.3",),
    "40 % masked": ("objective.rate=0.4",),
    "AdamW at 1e-3": ("training.optim=adamw",),
    "AdamW at 2e-3": ("training.optim=adamw", "training.learning_rate=2e-3"),
    "cosine schedule": ("training.lr_scheduler_type=cosine",),
    "trapezoid schedule": ("training.lr_scheduler_type=trapezoid",),
    "batches from a quarter, over 0.3": ("training.batch_warmup_ratio=0.3", "training.batch_warmup_start=0.25"),
    "rows of 64 first, for 0.3": ("training.row_length=[{length: 64, share: 0.3}, {length: 128, share: 0.7}]",),
}
HOME, PAGE = Path("runs/learning"), Path(__file__).with_name("learning.md")
ROWS, LENGTH = 2048, 128
_SOME_STEPS = "training.budget=20 steps"


def folder(variant: str, seed: int, minutes: float) -> Path:
    """Return where a run lies."""
    name = "".join(letter if letter.isalnum() else "-" for letter in variant.lower())
    return HOME / f"{minutes:g}-min" / f"{name}-{seed}"


def command(variant: str, seed: int, minutes: float) -> list[str]:
    """Return the arguments of a run."""
    own = [f"output={folder(variant, seed, minutes)}", f"seed={seed}", f"training.budget={minutes:g} min"]
    return ["pretrain", RECIPE, *own, "training.evaluations=0", *VARIANTS[variant]]


def loss(run: Path) -> float:
    """Return the held-out loss at 15 % of a finished run, measured once."""
    kept = run.with_name(f"{run.name}.loss.json")
    if not kept.is_file():
        kept.write_text(json.dumps(_measure(run)), encoding="utf-8")
    return float(json.loads(kept.read_text(encoding="utf-8")))


def _measure(run: Path) -> float:
    from transformers import AutoModelForMaskedLM

    from headstart.core import config
    from headstart.objectives.masked_lm import MaskedLM
    from headstart.stages.learner import CorpusRows, PretrainLearner
    from headstart.stages.networks import tokenizer_of
    from headstart.stages.prepare import prepare
    from headstart.stages.pretrain import PretrainRecipe
    from headstart.tokens.rows import cut

    recipe = config.fill(PretrainRecipe, read(run)["recipe"])
    prepared = prepare(recipe.corpus, tokenizer_of(recipe), recipe.seed, run / "prepared", quiet=True)
    objective = MaskedLM(MaskedLM.Config(rate=0.15))
    rows = cut(prepared.corpora[0].validation, prepared.vocabulary, objective.row_shape(LENGTH))
    model = AutoModelForMaskedLM.from_pretrained(str(run))
    held_out = [CorpusRows("", 1.0, rows)]
    return PretrainLearner(model, objective, held_out, held_out, prepared.vocabulary, 0).validate(ROWS)["loss"]


def table(seeds: int, minutes: float) -> str:
    """Return a row for each variant: loss, difference from the first by seed, tokens read."""
    first = next(iter(VARIANTS))
    found = {
        variant: {
            seed: loss(run) for seed in range(seeds) if is_finished(run := folder(variant, seed, minutes))
        }
        for variant in VARIANTS
    }  # fmt: skip
    twice = {
        seed: loss(run) for seed in found[first] if is_finished(run := folder(first, seed, 2 * minutes))
    }  # fmt: skip

    def doubled(seeds: Iterable[int]) -> list[float]:
        return [twice[seed] - found[first][seed] for seed in seeds if seed in twice]

    lines = [
        "| variant | seeds | held-out loss | against the first | its time | tokens |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for variant, losses in found.items():
        if not losses:
            lines.append(f"| {variant} | 0 | not run | | | |")
            continue
        read_tokens = [read(folder(variant, seed, minutes))["progress"]["tokens"] for seed in losses]
        paired = [value - found[first][seed] for seed, value in losses.items() if seed in found[first]]
        against = "–" if variant == first else _spread(paired, sign=True)
        tokens = sum(read_tokens) / len(read_tokens) / 1e6
        both = [value - found[first][seed] for seed, value in losses.items() if seed in twice]
        told = [variant, str(len(losses)), _spread(list(losses.values())), against, _worth(both, doubled(losses))]
        lines.append(f"| {' | '.join(told)} | {tokens:.1f} M |")
    if twice:
        told = [
            f"{first}, twice the time",
            str(len(twice)),
            _spread(list(twice.values())),
            _spread(doubled(twice), sign=True),
        ]
        lines.append(f"| {' | '.join(told)} | 2 | |")
    return "\n".join(lines)


def _spread(values: list[float], sign: bool = False) -> str:
    """Return the mean and the half-width of its 95 % interval over seeds."""
    from headstart.evaluation.significance import interval

    if not values:
        return "–"
    summary = interval(values)
    mean = f"{summary.mean:+.3f}" if sign else f"{summary.mean:.3f}"
    return mean if summary.high is None else f"{mean} ± {summary.high - summary.mean:.3f}"


def _worth(paired: list[float], doubling: list[float]) -> str:
    """Return what part of the first variant's time buys the same loss, from what a doubling of it buys."""
    if not paired or not doubling:
        return "–"
    return f"{2 ** (sum(paired) / len(paired) / (sum(doubling) / len(doubling))):.2f}"


def main() -> None:
    """Run what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0, help="time of each run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at once, one thread each")
    parser.add_argument("--only-table", action="store_true", help="write the page from what is finished")
    options = parser.parse_args()
    if not options.only_table:
        names = list(VARIANTS)
        # Other neighbours for each variant with each seed: two that run side by side share a machine.
        length = dict.fromkeys(names, options.minutes)
        cells = [
            (name, seed, minutes)
            for seed in range(options.seeds)
            for name, minutes in Random(seed).sample([*length.items(), (names[0], 2 * options.minutes)], len(names) + 1)
        ]
        for seed in range(options.seeds):
            # Some steps first, whose corpus is encoded and whose shapes are compiled outside of anybody's time.
            for variant in VARIANTS if seed == 0 else [names[0]]:
                first = folder(variant, seed, 0)
                run_all([["pretrain", RECIPE, f"output={first}", f"seed={seed}", _SOME_STEPS, *VARIANTS[variant]]], 1)
        run_all([command(*cell) for cell in cells], options.jobs)
    PAGE.write_text(
        f"# What learns more in {options.minutes:g} minutes\n\n"
        f"Written by `python docs/results/learning.py --minutes {options.minutes:g} --seeds {options.seeds} "
        f"--jobs {options.jobs}`. A mini encoder ({RECIPE}) with one change at a time; held-out loss in nats at 15 % "
        f"masked tokens, {ROWS:,} rows; mean ± 95 % interval over seeds; differences seed by seed, below 0 being "
        "better; its time: the part of the first variant's that would bring the first as far, by what twice the time "
        "brought it.\n\n"
        f"{table(options.seeds, options.minutes)}\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
