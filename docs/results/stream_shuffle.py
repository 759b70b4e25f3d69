"""What a streamed corpus costs in held-out loss against a full shuffle, with the same text, tokenizer and steps.

Two corpora lie one after the other in the files, so that parts that are read together are alike: reviews and an
encyclopedia. Each seed trains with a full shuffle and with windows of several widths. All are measured on the same
held-out rows of the whole text. Finished runs are kept in the folder, so the command can be repeated. Each line is one
run; the last line is JSON with the means over seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from headstart.core import artifact, config
from headstart.stages.pretrain import run as pretrain
from headstart.stages.pretrain.learner import PretrainLearner
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.pretrain.reopen import Pretraining, assembled

PARTS = 24
ARMS: dict[str, int | None] = {"full": None, "12 parts": 12, "4 parts": 4, "2 parts": 2}
"""The number of parts in a window; None shuffles the whole text."""
_ROWS = 4096


def write_files(data: Path, folder: Path, megabytes: float) -> None:
    """Write the beginning of two corpora, as JSON Lines, each to a file of its own."""
    for name, source in (("a", "imdb-unlabelled/reviews"), ("b", "wikipedia-en-2015/part-00")):
        path, size, lines = folder / f"{name}.jsonl", 0.0, []
        for text in pq.read_table(data / "corpora" / f"{source}.parquet", columns=["text"])["text"].to_pylist():
            size += len(text.encode())
            lines.append(json.dumps({"text": text}) + "\n")
            if size > megabytes * 1e6:
                break
        artifact.write_whole(path, "".join(lines))


def recipe_of(options: argparse.Namespace, arm: str, seed: int) -> PretrainRecipe:
    """Return the recipe of one run; all use the tokenizer of the first run with a full shuffle."""
    width, first = ARMS[arm], options.folder / "full-0"
    stream = {} if width is None else {"stream": {"part_mb": 2 * options.megabytes / PARTS, "shuffle_parts": width}}
    raw: dict[str, Any] = {
        "seed": seed, "output": options.folder / f"{arm.replace(' ', '-')}-{seed}",
        "corpus": {"files": str(options.folder / "*.jsonl"), "validation": 0.15, **stream},
        "tokenizer": {"kind": "bpe", "vocab_size": 4096},
        "backbone": {"family": "decoder", "kind": "modernbert-decoder", "size": "tiny"},
        "objective": {"name": "causal_lm"},
        "training": {
            "budget": f"{options.steps} steps", "seq_length": 64, "batch_tokens": 2048, "learning_rate": 2e-3,
            "eval_count": 1, "report_to": "none", "save_interval_minutes": 60,
        },
    }  # fmt: skip
    if (arm, seed) != ("full", 0):
        raw["tokenizer"] = {"path": first}
    return config.fill(PretrainRecipe, raw, where="stream_shuffle")


def held_out_loss(folder: Path, measured_on: Pretraining) -> float:
    """Return the loss of a run on the rows that the full shuffle of the same seed held out."""
    rows = [measured_on._rows(split) for split in ("train", "validation")]
    network = assembled(folder, measured_on.objective)
    learner = PretrainLearner(network, measured_on.objective, *rows, measured_on.vocabulary, seed=0)
    return learner.validate(_ROWS)["loss"]


def main() -> None:
    """Train what is missing, measure all runs and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="the folder with corpora/")
    parser.add_argument("folder", type=Path, help="the folder for the runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--megabytes", type=float, default=2.0, help="of each of the two corpora")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if not (options.folder / "b.jsonl").is_file():
        write_files(options.data, options.folder, options.megabytes)
    losses: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for seed in range(options.seeds):
        for arm in ARMS:
            folder = pretrain.run(recipe_of(options, arm, seed), quiet=True)
            losses[arm].append(held_out_loss(folder, Pretraining(options.folder / f"full-{seed}")))
            print(f"seed {seed}, {arm}: held-out loss {losses[arm][-1]:.4f}", flush=True)
        lost = {
            arm: [round(streamed - full, 4) for streamed, full in zip(values, losses["full"], strict=True)]
            for arm, values in losses.items()
        }
        means = {arm: round(statistics.fmean(values), 4) for arm, values in losses.items()}
        print(json.dumps({"seeds": seed + 1, "steps": options.steps, "loss": means, "above_full": lost}), flush=True)


if __name__ == "__main__":
    main()
