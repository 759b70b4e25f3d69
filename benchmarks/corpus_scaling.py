"""Time and memory of the whole corpus recipe by size (10, 30, 100 and 300 MB), near-duplicates included."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from corpus_slices import megabytes_of, run_ours, slices
from side_by_side import report


def main() -> None:
    """Fit seconds = a · n^b without the start-up, and compare peak memory; print one line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--sizes", type=float, nargs="+", default=[10, 30, 100, 300])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    sizes = [2, 4] if options.quick else options.sizes
    with tempfile.TemporaryDirectory() as folder:
        # The start-up time is the same for all sizes, so it is subtracted before the fit.
        places = [slices(Path(folder), size) for size in (0.2, *sizes)]
        # Sizes alternate, and the minimum counts, because other work on the machine only adds time.
        runs = [[run_ours(data) for data in places] for _ in range(1 if options.quick else options.repetitions)]
        best = [min((turn[place] for turn in runs), key=lambda run: run[0]) for place in range(len(places))]
        started = best[0][0]
        measured = [(megabytes_of(data), *run) for data, run in zip(places[1:], best[1:], strict=True)]
    megabytes = np.array([size for size, *_ in measured])
    seconds = np.array([seconds - started for _, seconds, *_ in measured])
    exponent = float(np.polyfit(np.log(megabytes), np.log(np.maximum(seconds, 1e-3)), 1)[0])
    points = [
        {"megabytes": round(size, 1), "seconds": round(taken, 1), "mb_per_second": round(size / taken, 2),
         "peak_mb": round(memory), "shuffled": cost["shuffled"], "steps": cost["seconds"]}
        for size, taken, memory, cost in measured
    ]  # fmt: skip
    peaks = [memory for size, _, memory, _ in measured if size >= 0.9 * sizes[min(1, len(sizes) - 1)]]
    report("corpus: peak memory flat in size", [max(peaks)], [peaks[0]], 1 / 1.2, "MB", less_is_better=True)
    report(
        "corpus: growth of time with size", [exponent], [1.05], 1.0, "exponent", less_is_better=True,
        start_seconds=round(started, 1), points=points,
    )  # fmt: skip


if __name__ == "__main__":
    main()
