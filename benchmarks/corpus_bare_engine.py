"""The whole recipe against the engine bare: the same expressions and functions, without receipts and rejects."""

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

from corpus_slices import DATA, megabytes_of, run_ours, slices
from side_by_side import in_turns, report


def bare(data: Path, folder: Path) -> None:
    """Do what the recipe does as a user of Daft alone would: one lazy frame, then the same group-bys and joins."""
    import daft
    import pyarrow as pa
    from daft import DataType, col

    from headstart.corpus import contamination, counts, duplicates, engine, fingerprints, lines, quality, unicode
    from headstart.corpus.contamination import ContaminationConfig
    from headstart.corpus.language import Language, LanguageConfig
    from headstart.corpus.personal import Personal, PersonalConfig
    from headstart.corpus.rules import verdict

    engine.start(engine.EngineConfig())
    daft.set_execution_config(default_morsel_size=256)
    sets = ContaminationConfig.model_validate(
        {"sets": [{"name": "squad", "files": str(DATA / "tasks/squad/validation.parquet"), "text": "context"}]}
    )
    contamination.write_table(sets, folder / "table.parquet")
    rules = quality.QualityConfig()
    wanted = dict.fromkeys(n for f in (rules.gopher, rules.repetition, rules.fineweb) if f for n in f.counts)
    needed = [name for name in wanted if name in counts.EXPRESSIONS]

    class Mend:
        def __init__(self) -> None:
            self.step = unicode.Unicode(unicode.UnicodeConfig())

        @daft.method.batch(return_dtype=DataType.string(), batch_size=256)
        def __call__(self, texts: Any) -> Any:
            from collections import Counter

            return self.step._mended(pa.chunked_array([texts.to_arrow().cast(pa.large_string())]), Counter())

    class Judge:
        """Language, quality and personal data, which need Python."""

        def __init__(self) -> None:
            self.language = Language(LanguageConfig(keep=["en"]))
            self.quality = quality.Quality(quality.QualityConfig())
            self.personal = Personal(PersonalConfig())

        @daft.method.batch(return_dtype=DataType.string(), batch_size=256)
        def __call__(self, texts: Any, *numbers: Any) -> Any:
            import numpy as np
            import pyarrow.compute as pc

            table = pa.table({"text": texts.to_arrow().cast(pa.large_string())})
            told = self.language.apply(table).verdict
            counted = {
                name: column.to_arrow().to_numpy(zero_copy_only=False).astype(np.float64)
                for name, column in zip(needed, numbers, strict=True)
            }
            counted |= counts.measured(table["text"], [name for name in wanted if name not in counts.EXPRESSIONS])
            values: dict[str, Any] = {}
            for family in self.quality.families:
                values |= family.measures(counted)
                values |= family.of_ngrams(table["text"]) if hasattr(family, "of_ngrams") else {}
            skipped = [rule for rule in self.quality.rules if rule.name != "gopher.many_words"]
            judged = verdict(skipped, values, len(table))
            texts = self.personal.apply(table).table["text"].combine_chunks()
            return pc.if_else(pc.and_(pc.is_null(told), pc.is_null(judged)), texts, pa.scalar(None, texts.type))

    class Find:
        def __init__(self) -> None:
            self.step = contamination.Contamination(sets, folder / "table.parquet")

        @daft.method.batch(return_dtype=DataType.bool(), batch_size=256)
        def __call__(self, normals: Any) -> Any:
            return self.step.apply(pa.table({"normal": normals.to_arrow().cast(pa.large_string())})).verdict.is_null()

    cores = len(os.sched_getaffinity(0))
    mend, judge, find = (daft.cls(c, use_process=True, max_concurrency=cores)() for c in (Mend, Judge, Find))
    frame = daft.read_parquet(f"{data}/**/*.parquet").with_column("text", mend(col("text")))
    frame = frame.with_column("text", unicode._tidied())
    frame = frame.with_columns({name: counts.EXPRESSIONS[name]() for name in needed})
    frame = frame.select(judge(col("text"), *(col(name) for name in needed)).alias("text")).where(
        col("text").not_null()
    )
    frame = frame.with_column("normal", fingerprints.normal(col("text"))).where(find(col("normal")))
    signature = fingerprints.SignatureConfig()

    @daft.func.batch(
        return_dtype=DataType.struct(
            {"key": DataType.uint64(), "second_key": DataType.uint64(), "bands": DataType.list(DataType.uint64())}
        ),
        unnest=True,
    )
    def marks(normals: Any) -> Any:
        made = fingerprints.fingerprints(pa.chunked_array([normals.to_arrow().cast(pa.large_string())]), signature)
        lists = made["bands"].combine_chunks().cast(pa.list_(pa.uint64()))
        columns = [made["key"].combine_chunks(), made["second_key"].combine_chunks(), lists]
        return pa.StructArray.from_arrays(columns, names=["key", "second_key", "bands"])

    frame = frame.select("text", marks(col("normal")))._add_monotonically_increasing_id("doc")
    frame.write_parquet(str(folder / "clean" / "documents"), compression="zstd")
    (folder / "clean" / "fingerprints").symlink_to(folder / "clean" / "documents")
    from daft.functions import length

    duplicates_config = duplicates.DuplicatesConfig()
    duplicates.find(folder / "clean", folder / "duplicates", duplicates_config)
    gone = engine.frame(folder / "duplicates" / "found", "doc")
    left = engine.frame(folder / "clean" / "documents", "doc", "text").join(gone, on="doc", how="anti")
    from daft.functions import hash as hashed
    from daft.functions import split

    pieces = left.select("doc", split(col("text"), "\n").alias("line")).explode("line").where(length(col("line")) > 0)
    told = pieces.select("doc", hashed(col("line"), hash_function="xxhash3_64").alias("line")).distinct()
    lines.repeated(told, 20).write_parquet(str(folder / "lines"))
    left.write_parquet(str(folder / "final"), compression="zstd")


def run_bare(data: Path) -> float:
    """Time the bare engine in a process of its own, as ours is."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        code = "import sys; from pathlib import Path; from corpus_bare_engine import bare; import os\n"
        code += f"bare(Path({str(data)!r}), Path({folder!r})); os._exit(0)"
        here = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": here})
        assert list((Path(folder) / "final").glob("*.parquet"))
        return time.monotonic() - began


def main() -> None:
    """Measure both in turns, in megabytes a second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=100)
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
        told = json.loads(json.dumps(steps[-1]))
        report(
            "corpus against the engine bare", found["ours"], found["theirs"], 0.9, "MB/s", megabytes=round(size, 1),
            steps=told,
        )  # fmt: skip


if __name__ == "__main__":
    main()
