"""What shuffling in buffers of blocks costs: the held-out loss after one epoch over text that is sorted by its source.

Four sources follow each other in one corpus: reviews, passages of novels in their order, sentences language by
language, and Wikipedia articles by title. A small decoder reads it once with each order, with several seeds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pretraining import Ours
from side_by_side import DATA, arguments, report

from headstart.stages.pretrain.learner import PretrainLearner
from headstart.training.batches import global_batch

CHARACTERS = 700_000
"""Characters of each source."""
PASSAGE = 2000
ORDERS: dict[str, tuple[int, int] | None] = {
    "full": None, "16 blocks of 8k": (1 << 17, 1 << 13), "4 blocks of 8k": (1 << 15, 1 << 13),
    "2 blocks of 128k": (1 << 18, 1 << 17),
}  # fmt: skip
"""Tokens of a buffer and of a block, by name."""


def sorted_text(folder: Path) -> Path:
    """Write the four sources one after the other, and return the file."""
    path = folder / "sorted.jsonl"
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    corpora = Path(DATA) / "corpora"
    reviews = pq.read_table(corpora / "imdb-unlabelled" / "reviews.parquet")["text"].to_pylist()
    novels = pq.read_table(corpora / "eltec-novels" / "novels.parquet")["text"].to_pylist()
    passages = [novel[i : i + PASSAGE] for novel in novels[:6] for i in range(0, len(novel), PASSAGE)]
    spoken = pq.read_table(corpora / "tatoeba-multilingual" / "sentences.parquet").sort_by("language")
    languages, sentences = spoken["language"].to_pylist(), spoken["text"].to_pylist()
    groups = [
        " ".join(sentences[i : i + 40]) for i in range(0, len(sentences), 40)
        if languages[i] == languages[min(i + 39, len(languages) - 1)]
    ]  # fmt: skip
    articles = pq.read_table(corpora / "wikipedia-en-2015" / "part-00.parquet").sort_by("title")["text"].to_pylist()
    with path.open("w", encoding="utf-8") as file:
        for texts in (reviews, passages, groups, articles):
            total = 0
            for text in texts:
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                total += len(text)
                if total >= CHARACTERS:
                    break
    return path


def trained(text: Path, order: tuple[int, int] | None, seed: int, most_steps: int) -> dict[str, Any]:
    """Train for one epoch and return the held-out loss, with facts on the batches."""
    shuffle = ["null", "2097152"] if order is None else [str(order[0]), str(order[1])]
    ours = Ours(
        f"seed={seed}", "warm_start=null", "training.torch_compile=false", "training.optim=adamw",
        "training.report_to=none", "objective={name: causal_lm}", "training.budget=1 epochs",
        "backbone={family: decoder, size: tiny, dropout: 0.0}", "training.seq_length=128", "training.batch_tokens=2048",
        "tokenizer={kind: bpe, vocab_size: 2048, sample_mb: 8}", f"training.shuffle_buffer_tokens={shuffle[0]}",
        f"training.shuffle_block_tokens={shuffle[1]}", "training.learning_rate=3e-3",
        f"corpus={{files: ['{text}'], validation: 0.05, prepared: '{text.parent}/prepared'}}",
    )  # fmt: skip
    rows, steps = len(ours.learner), min(most_steps, len(ours.learner) // ours.batch_size)
    batches = [
        np.array([s.index for s in global_batch(ours.learner, step, ours.batch_size, seed)]) for step in range(steps)
    ]
    ours.tokens_per_second(steps)
    held_out = PretrainLearner(
        ours.module, ours.objective, ours.held_out, ours.held_out, ours.vocabulary, seed
    ).validate(10**9)  # fmt: skip
    # Four stretches of the corpus, about one source each: how far a batch is from a share of 1/4 of each.
    shares = np.stack([np.bincount(batch * 4 // rows, minlength=4) / len(batch) for batch in batches])
    return {
        "loss": held_out["loss"], "rows": rows, "steps": steps,
        "largest share of a quarter": float(shares.max(axis=1).mean()),
        "neighbors in a batch": float(np.mean([np.mean(np.diff(np.sort(batch)) == 1) for batch in batches])),
    }  # fmt: skip


def main() -> None:
    """Print one line of JSON per order, against the permutation of all rows; finished runs are read from the log."""
    options = arguments(__doc__ or "", repetitions=3)
    folder = Path("runs/shuffle-loss-quick" if options.quick else "runs/shuffle-loss")
    text, log = sorted_text(folder), folder / "log.jsonl"
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    found = {(run["order"], run["seed"]): run for run in done}
    for seed in range(options.repetitions):
        for name, order in ORDERS.items():
            if (name, seed) in found:
                continue
            found[name, seed] = {"order": name, "seed": seed} | trained(
                text, order, seed, 2 if options.quick else 10**9
            )
            with log.open("a") as file:
                file.write(json.dumps(found[name, seed]) + "\n")
    seeds = range(options.repetitions)
    for name in list(ORDERS)[1:]:
        runs = [found[name, seed] for seed in seeds]
        facts = {key: runs[0][key] for key in ("largest share of a quarter", "neighbors in a batch", "steps")}
        report(
            f"held-out loss after one epoch, {name}", [run["loss"] for run in runs],
            [found["full", seed]["loss"] for seed in seeds], 0.99, "nats", less_is_better=True, **facts,
        )  # fmt: skip


if __name__ == "__main__":
    main()
