"""Predicting a file: `headstart predict` against transformers' pipeline at its best batch size, MiniLM on SST-2.

Headstart's time is that of the whole call: it starts its processes, loads the model, reads the file and writes the
output. The pipeline is loaded before and predicts a list of texts.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
import torch
from finetuning import minilm
from side_by_side import DATA, arguments, in_turns, number_format, report
from transformers import pipeline

import headstart
from headstart.core.processes import cores
from headstart.training import precision

BATCH_SIZES = (1, 8, 32, 64)
SST2 = DATA / "tasks/sst2"


def finetuned(folder: Path) -> Path:
    """Fine-tune MiniLM on SST-2 for a few steps; how well it predicts does not matter for the speed."""
    recipe = {
        "output": str(folder), "model": minilm(), "task": {"kind": "classify"}, "seeds": 1, "compare_with": [],
        "adaptation": {"name": "full"},
        "data": {
            "train": str(SST2 / "train.parquet"), "validation": str(SST2 / "validation.parquet"),
            "test": str(SST2 / "validation.parquet"), "allow_overlap": True, "train_rows": 64,
        },
        "training": {"budget": "2 steps", "batch_size": 16, "max_length": 128, "eval_count": 1},
    }  # fmt: skip
    return headstart.finetune(recipe, quiet=True).path


def main() -> None:
    """Measure both and the share of equal labels; print one line of JSON."""
    options = arguments(__doc__ or "", repetitions=3)
    logging.getLogger("headstart").setLevel(logging.WARNING)
    folder = Path(tempfile.mkdtemp())
    try:
        model = finetuned(folder / "model")
        rows = pq.read_table(SST2 / "train.parquet").slice(0, 64 if options.quick else 20_000)
        pq.write_table(rows, folder / "rows.parquet")
        measure(model, folder, rows.column("text").to_pylist(), options.repetitions)
    finally:
        shutil.rmtree(folder)


def measure(model: Path, folder: Path, texts: list[str], repetitions: int) -> None:
    """Choose the pipeline's batch size on a part of the texts, then let both predict all of them in turns."""
    theirs = pipeline("text-classification", model=str(model), device="cpu", dtype=precision.dtype(number_format()))
    labels: dict[str, list[str]] = {}

    def piped(batch_size: int, some: list[str]) -> float:
        start = time.perf_counter()
        labels["theirs"] = [found["label"] for found in theirs(some, batch_size=batch_size)]
        return len(some) / (time.perf_counter() - start)

    def ours() -> float:
        start = time.perf_counter()
        headstart.predict(model, folder / "rows.parquet", folder / "out.parquet", quiet=True, overwrite=True)
        return len(texts) / (time.perf_counter() - start)

    piped(8, texts[:64])
    speeds = {size: piped(size, texts[:2000]) for size in BATCH_SIZES}
    best = max(speeds, key=lambda size: speeds[size])
    found = in_turns(repetitions, ours=ours, theirs=lambda: piped(best, texts))
    predicted = map(str, pq.read_table(folder / "out.parquet").column("prediction").to_pylist())
    equal = sum(a == b for a, b in zip(predicted, labels["theirs"], strict=True)) / len(texts)
    report(f"predicting {len(texts):,} rows of SST-2, MiniLM, against transformers.pipeline in {number_format()}",
           found["ours"], found["theirs"], 2.0, "rows/s", processes=cores(), pipeline_threads=torch.get_num_threads(),
           pipeline_batch_size=best, pipeline_rows_per_second={size: round(speeds[size]) for size in BATCH_SIZES},
           equal_labels=round(equal, 4))  # fmt: skip


if __name__ == "__main__":
    main()
