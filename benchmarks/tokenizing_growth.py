"""Time and memory of writing token shards by size: 10, 30, 100 and 300 MB of Wikipedia, each in a new process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from pretraining import prepared_of
from side_by_side import arguments, report
from texts import megabytes_of_wikipedia

from headstart.core import config
from headstart.core.data import Document
from headstart.evaluation.memory import PeakMemory
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.tokens import shards

SIZES = (10, 30, 100, 300)


def once(megabytes: float) -> tuple[float, float]:
    """Return the seconds to write the shards, and the peak memory in megabytes."""
    tokenizer = prepared_of(config.load("recipes/objectives/mini.yaml", PretrainRecipe)).tokenizer
    memory, start = PeakMemory(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        texts = megabytes_of_wikipedia(megabytes)
        shards.write((Document("", text) for text in texts), tokenizer, Path(folder))
    return time.perf_counter() - start, memory.stop()


def main() -> None:
    """Fit seconds = a · n^b over the sizes, and compare peak memory; print one line of JSON for each."""
    if "--side" in sys.argv:
        print(*once(float(sys.argv[-1])))
        return
    options = arguments(__doc__ or "", repetitions=1)
    sizes = (1, 2) if options.quick else SIZES
    points = []
    for size in sizes:
        command = [sys.executable, __file__, "--side", str(size)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-2:]
        points.append((size, *map(float, output)))
    megabytes, seconds, peaks = np.array(points).T
    exponent = float(np.polyfit(np.log(megabytes), np.log(seconds), 1)[0])
    table = [
        {"megabytes": size, "seconds": round(taken, 1), "mb_per_second": round(size / taken, 2), "peak_mb": round(peak)}
        for size, taken, peak in points
    ]
    report("tokenizing: peak memory flat in size", [float(peaks[-1])], [float(peaks[0])], 1 / 1.2, "MB",
           less_is_better=True)  # fmt: skip
    report(
        "tokenizing: growth of time with size", [exponent], [1.05], 1.0, "exponent", less_is_better=True, points=table
    )


if __name__ == "__main__":
    main()
