"""Speed of the whole corpus recipe against datatrove's standard blocks, on a slice of text.

datatrove needs packages that conflict with Headstart's (`fasttext`), so it is installed in its own environment:
`python -m venv dt && dt/bin/pip install 'datatrove[io,processing]==0.10.1' spacy`. DATATROVE_PYTHON or `--python` names
its interpreter. Without it, nothing is measured.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from corpus_slices import megabytes_of, run_ours, slices
from side_by_side import in_turns, report

THEIRS = """
import sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.filters import FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter
from datatrove.pipeline.formatters import FTFYFormatter, PIIFormatter
from datatrove.pipeline.readers import JsonlReader, ParquetReader
from datatrove.pipeline.writers import JsonlWriter

data, folder, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
if __name__ == "__main__":
    config = MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8)
    tasks = 8
    run = lambda name, steps, n: LocalPipelineExecutor(
        pipeline=steps, tasks=n, workers=workers, logging_dir=f"{folder}/logs/{name}"
    ).run()
    run("clean", [
        ParquetReader(data, glob_pattern="**/*.parquet"), FTFYFormatter(), GopherRepetitionFilter(),
        GopherQualityFilter(max_doc_words=10**9), FineWebQualityFilter(), PIIFormatter(),
        JsonlWriter(f"{folder}/clean", compression=None),
    ], tasks)
    run("signatures", [JsonlReader(f"{folder}/clean"), MinhashDedupSignature(f"{folder}/sig", config=config)], tasks)
    run("buckets", [MinhashDedupBuckets(f"{folder}/sig", f"{folder}/buckets", config=config)], config.num_buckets)
    run("clusters", [MinhashDedupCluster(f"{folder}/buckets", f"{folder}/remove", config=config)], 1)
    run("filter", [
        JsonlReader(f"{folder}/clean"), MinhashDedupFilter(f"{folder}/remove"),
        JsonlWriter(f"{folder}/out", compression=None),
    ], tasks)
"""


def run_theirs(python: str, data: Path, workers: int) -> float:
    """Return the seconds of datatrove's blocks, without language (a download) and evaluation sets (no such block)."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "theirs.py"
        script.write_text(THEIRS, encoding="utf-8")
        began = time.monotonic()
        subprocess.run(
            [python, str(script), str(data), folder, str(workers)], check=True, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert list((Path(folder) / "out").glob("*")), "datatrove wrote nothing"
        return time.monotonic() - began


def main() -> None:
    """Measure both alternately, in megabytes per second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--megabytes", type=float, default=40)
    parser.add_argument("--workers", type=int, default=2)
    chosen = os.environ.get("DATATROVE_PYTHON", "dt/bin/python")
    parser.add_argument("--python", default=chosen, help="Python interpreter with datatrove")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if not Path(options.python).is_file():
        print(f"{options.python} does not exist; {__file__} describes how to create it", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        data = slices(Path(folder), 2 if options.quick else options.megabytes)
        size = megabytes_of(data)
        found = in_turns(
            options.repetitions,
            ours=lambda: size / run_ours(data)[0],
            theirs=lambda: size / run_theirs(options.python, data, options.workers),
        )
        report(
            "corpus against datatrove's blocks", found["ours"], found["theirs"], 10, "MB/s", megabytes=round(size, 1)
        )


if __name__ == "__main__":
    main()
