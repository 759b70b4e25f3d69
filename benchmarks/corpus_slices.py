"""Slices of Wikipedia and novels for the corpus benchmarks, and one run of the whole recipe on a slice.

5 % of the documents occur twice, the second time with one word in two hundred changed. The original texts have almost
no duplicates, and the benchmarks must include the cost of finding some.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml
from side_by_side import DATA

from headstart.evaluation.memory import PeakMemory

FILE_MB = 8
ONE_IN, WORD_IN = 20, 200
SQUAD = {"name": "squad", "files": str(DATA / "tasks/squad/validation.parquet"), "text": "context"}
SOURCES = {"wikipedia": ("wikipedia-en-2015", 0.85), "novels": ("eltec-novels", 0.15)}


def slices(folder: Path, megabytes: float) -> Path:
    """Write about this many megabytes of text in files of at most 8 MB, and return their folder."""
    target = folder / f"{megabytes:g}mb"
    for name, (home, share) in SOURCES.items():
        left, number = megabytes * share * 1e6, 0
        for path in sorted((DATA / "corpora" / home).glob("*.parquet")):
            texts = pq.read_table(path, columns=["text"])["text"].cast(pa.large_string())
            ends = np.cumsum(pc.binary_length(texts).to_numpy())
            taken = int(np.searchsorted(ends, left)) + 1
            for part in map(_with_copies, _cut(texts.slice(0, taken))):
                (target / name).mkdir(parents=True, exist_ok=True)
                pq.write_table(pa.table({"text": part}), target / name / f"{number:04d}.parquet", compression="zstd")
                number += 1
            left -= float(ends[min(taken, len(ends)) - 1])
            if left <= 0:
                break
    return target


def _with_copies(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Append changed copies of some texts."""

    def changed(text: str) -> str:
        words = text.split(" ")
        words[::WORD_IN] = ["changed"] * len(words[::WORD_IN])
        return " ".join(words)

    copies = [changed(text) for text in texts.take(pa.array(range(0, len(texts), ONE_IN))).to_pylist()]
    return pa.chunked_array([*texts.chunks, pa.array(copies, pa.large_string())])


def _cut(texts: pa.ChunkedArray) -> list[pa.ChunkedArray]:
    ends = np.cumsum(pc.binary_length(texts).to_numpy())
    edges = np.searchsorted(ends, np.arange(FILE_MB * 1e6, float(ends[-1]), FILE_MB * 1e6))
    bounds = [0, *np.unique(edges).tolist(), len(texts)]
    return [texts.slice(a, b - a) for a, b in pairwise(bounds) if b > a]


def megabytes_of(folder: Path) -> float:
    """Return the size of the text of a slice in megabytes."""
    found = 0
    for path in folder.rglob("*.parquet"):
        found += pc.sum(pc.binary_length(pq.read_table(path, columns=["text"])["text"])).as_py() or 0
    return found / 1e6


def recipe(data: Path, output: Path) -> dict[str, Any]:
    """Return the recipe to measure: every step and one evaluation set."""
    return {
        "output": str(output),
        "sources": [{"name": name, "files": [str(data / name)], "without": ["gopher.many_words"]} for name in SOURCES],
        "clean": {"language": {"keep": ["en"]}},
        "contamination": {"sets": [SQUAD]},
    }


def run_ours(data: Path, *overrides: str) -> tuple[float, float, dict[str, Any]]:
    """Run the recipe from the command line; return seconds, peak memory in MB, and the cost in the manifest."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_text(yaml.safe_dump(recipe(data, Path(folder) / "corpus")), encoding="utf-8")
        command = [sys.executable, "-m", "headstart", "corpus", "build", str(path), *overrides, "--quiet"]
        memory, began = PeakMemory(), time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - began
        memory.stop()
        manifest = yaml.safe_load((Path(folder) / "corpus" / "headstart.json").read_text(encoding="utf-8"))
        return seconds, memory.megabytes(), manifest["cost"]
