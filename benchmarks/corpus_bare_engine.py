"""Speed of the whole corpus recipe against the bare engine: the same functions, without receipts and rejects.

The bare version is what an experienced user of Daft would write. One function in one process per core calls
Headstart's steps one after the other on a batch. Group-bys and joins find duplicates and repeated lines. A last pass
removes the lines and splits. It writes no row counts, no dropped documents and no samples, and cannot be resumed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from corpus_slices import SQUAD, megabytes_of, run_ours, slices
from side_by_side import in_turns, report


def bare(data: Path, folder: Path) -> None:
    """Clean, deduplicate, remove repeated lines and split, with Daft only."""
    import daft
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from daft import DataType, col
    from daft.functions import hash as hashed
    from daft.functions import length, split

    from headstart.corpus.clean import quality
    from headstart.corpus.clean.language import Language, LanguageConfig
    from headstart.corpus.clean.part import Normalize
    from headstart.corpus.clean.personal import Personal, PersonalConfig
    from headstart.corpus.clean.unicode import Unicode, UnicodeConfig
    from headstart.corpus.dedup import contamination, lines
    from headstart.corpus.dedup.contamination import ContaminationConfig
    from headstart.corpus.dedup.fingerprints import SignatureConfig, fingerprints
    from headstart.corpus.parts import engine
    from headstart.corpus.parts.shingles import shingle_sets, words_of
    from headstart.corpus.select.proportions import uniform

    engine.start(engine.EngineConfig())
    sets = ContaminationConfig.model_validate({"sets": [SQUAD]})
    contamination.write_table(sets, folder / "table.parquet")
    cores, signature = len(os.sched_getaffinity(0)), SignatureConfig()
    marked = {
        "text": DataType.string(), "normal": DataType.string(), "key": DataType.uint64(),
        "second_key": DataType.uint64(), "bands": DataType.list(DataType.uint64()),
    }  # fmt: skip

    class Clean:
        def __init__(self) -> None:
            rules = quality.QualityConfig.model_validate({"gopher": {"max_words": 10**9}})
            self.steps = [
                Unicode(UnicodeConfig()), Language(LanguageConfig(keep=["en"])), quality.Quality(rules),
                Personal(PersonalConfig()), Normalize(), contamination.Contamination(sets, folder / "table.parquet"),
            ]  # fmt: skip

        @daft.method.batch(return_dtype=DataType.struct(marked), batch_size=256)
        def __call__(self, texts: Any) -> Any:
            table = pa.table({"text": texts.to_arrow().cast(pa.large_string()), "row": np.arange(len(texts))})
            for step in self.steps:
                outcome = step.apply(table)
                table = outcome.table
                if outcome.verdict is not None:
                    table = table.filter(pc.is_null(outcome.verdict))
            marks = fingerprints(table["normal"], signature)
            place = np.full(len(texts), -1)
            place[table["row"].to_numpy()] = np.arange(len(table))
            where = pa.array(place, mask=place < 0)
            columns = {
                **{name: table[name] for name in ("text", "normal")},
                **{name: marks[name] for name in ("key", "second_key", "bands")},
            }
            taken = [columns[name].combine_chunks().take(where) for name in marked]
            return pa.StructArray.from_arrays([*taken[:4], taken[4].cast(pa.list_(pa.uint64()))], names=list(marked))

    clean = daft.cls(Clean, use_process=True, max_concurrency=cores)()
    frame = daft.read_parquet(f"{data}/**/*.parquet").select(clean(col("text")).alias("made"))
    frame = frame.select(*(col("made").get(name).alias(name) for name in marked)).where(col("text").not_null())
    frame._add_monotonically_increasing_id("doc").write_parquet(str(folder / "clean"), compression="zstd")

    marks = engine.frame(folder / "clean", "doc", "key", "second_key", "bands")
    twice = ["key", "second_key"]
    first = marks.groupby(*twice).agg(col("doc").min().alias("kept"))
    exact = marks.join(first, on=twice).where(col("doc") != col("kept")).select("doc")
    exact.write_parquet(str(folder / "gone"))
    members = marks.join(exact, on="doc", how="anti").select("doc", col("bands").alias("band")).explode("band")
    roots = members.groupby("band").agg(col("doc").min().alias("root"), col("doc").count().alias("members"))
    pairs = members.join(roots.where(col("members") > 1), on="band").where(col("doc") != col("root"))
    pairs = pairs.select("doc", "root").distinct().collect()
    normals = engine.frame(folder / "clean", "doc", "normal")
    ones = pairs.join(normals, on="doc")
    both = ones.join(normals.select(col("doc").alias("root"), col("normal").alias("other")), on="root")

    @daft.func.batch(return_dtype=DataType.float64())
    def jaccard(left: Any, right: Any) -> Any:
        sides = [shingle_sets(words_of(pa.chunked_array([s.to_arrow()])), signature.words) for s in (left, right)]
        return [len(np.intersect1d(a, b)) / max(1, len(np.union1d(a, b))) for a, b in zip(*sides, strict=True)]

    near = both.where(jaccard(col("normal"), col("other")) >= 0.8).select("doc").distinct()
    near.write_parquet(str(folder / "gone"))

    left = engine.frame(folder / "clean", "doc", "key", "text").join(
        engine.frame(folder / "gone", "doc"), on="doc", how="anti"
    )
    pieces = left.select("doc", split(col("text"), "\n").alias("line")).explode("line").where(length(col("line")) > 0)
    hashes = pieces.select("doc", hashed(col("line"), hash_function="xxhash3_64").alias("line")).distinct()
    lines.repeated(hashes, 20).write_parquet(str(folder / "lines"))
    boilerplate = lines.load(folder / "lines")

    @daft.func.batch(return_dtype=DataType.string())
    def stripped(texts: Any) -> Any:
        return lines.remove(pa.chunked_array([texts.to_arrow().cast(pa.large_string())]), boilerplate)[0]

    @daft.func.batch(return_dtype=DataType.bool())
    def held_out(keys: Any) -> Any:
        return uniform(keys.to_arrow().to_numpy(), 0, "validation") < 0.005

    final = left.select(stripped(col("text")).alias("text"), held_out(col("key")).alias("held_out"))
    final.write_parquet(str(folder / "final"), partition_cols=["held_out"], compression="zstd")


def run_bare(data: Path) -> float:
    """Return the seconds of the bare version, in a new process, as for Headstart."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        code = "import sys; from pathlib import Path; from corpus_bare_engine import bare; import os\n"
        code += f"bare(Path({str(data)!r}), Path({folder!r})); os._exit(0)"
        here = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": here})
        assert list((Path(folder) / "final").rglob("*.parquet"))
        return time.monotonic() - began


def main() -> None:
    """Measure both alternately, in megabytes per second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=300)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = slices(Path(folder), 4 if options.quick else options.megabytes)
        size, steps = megabytes_of(data), list[dict[str, Any]]()

        def ours() -> float:
            seconds, _, cost = run_ours(data)
            steps.append(cost["steps"])
            return size / seconds

        found = in_turns(options.repetitions, ours=ours, theirs=lambda: size / run_bare(data))
        last_steps = json.loads(json.dumps(steps[-1]))
        report(
            "corpus against the engine bare", found["ours"], found["theirs"], 0.9, "MB/s", megabytes=round(size, 1),
            steps=last_steps,
        )  # fmt: skip


if __name__ == "__main__":
    main()
