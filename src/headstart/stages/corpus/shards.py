"""Encodes the documents of a corpus into token shards: part by part in worker processes, then joined.

The parts are shuffled, and the documents within each part. Both orders are pure functions of the seed, and the bytes
do not depend on the number of workers.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from headstart.core import artifact
from headstart.core.data import Document
from headstart.core.randomness import permute
from headstart.corpus.parts.files import finished, in_order, marker, part_file, part_name
from headstart.corpus.select.part import SPLITS
from headstart.stages.corpus.recipe import CorpusRecipe
from headstart.tokens import extension, joining, sampling, shards, tokenizer
from headstart.tokens.settings import TokenizerConfig

_WINDOW_BYTES = 256 << 20
Tasks = Callable[[str, str, Sequence[dict[str, Any]]], list[dict[str, Any]]]


def write(recipe: CorpusRecipe, work: Path, selected: Sequence[Mapping[str, Any]], run: Tasks) -> dict[str, Any]:
    """Write the tokenizer, encode all parts, join them into one folder per split, and return the counts."""
    assert recipe.tokenizer is not None
    tokenizer_folder, done = work / "shards" / "tokenizer", work / "shards" / "done"
    if not artifact.is_complete(tokenizer_folder):
        with artifact.staged(tokenizer_folder, "tokenizer") as staging:
            _write_tokenizer(recipe.tokenizer, _texts(work, "train"), recipe.seed, staging.path)
    counts: dict[str, Any] = {}
    for split in SPLITS:
        parts = [note["part"] for note in selected if note["splits"].get(split)]
        if not parts:
            continue
        shared = {"split": split, "work": str(work), "tokenizer": str(tokenizer_folder), "seed": recipe.seed}
        tasks = [{"number": part, **shared} for part in parts]
        run(f"shards/{split}", "headstart.stages.corpus.shards:encode_part", tasks)
        order = permute(range(len(parts)), len(parts), recipe.seed, 0, "parts")
        if not artifact.is_complete(done / split):
            with artifact.staged(done / split, "shards") as staging:
                joining.join([work / "shards" / split / part_name(parts[i]) for i in order], staging.path)
        counts[split] = json.loads((done / split / "counts.json").read_text(encoding="utf-8"))
    return counts


def _write_tokenizer(settings: TokenizerConfig, texts: Iterable[str], seed: int, folder: Path) -> None:
    """Write the tokenizer: an existing one, optionally extended by the words of the text, or a new one."""
    if settings.path is None:
        tokenizer.train(texts, settings, seed).save_pretrained(str(folder))
    elif settings.extend is None:
        tokenizer.load(settings.path).save_pretrained(str(folder))
    else:
        chunks = sampling.sample(texts, settings.sample_mb, seed)
        extension.extend(tokenizer.load(settings.path), chunks, settings.extend, folder)


def encode_part(task: Mapping[str, Any]) -> dict[str, Any]:
    """Encode the documents of one part and split, unless they are encoded, and return the note."""
    # One thread each, because the engine runs as many of these processes as there are cores.
    os.environ["RAYON_NUM_THREADS"] = "1"
    number, folder = int(task["number"]), Path(task["work"]) / "shards" / task["split"]
    existing = finished(folder, number)
    if existing is not None:
        return existing
    staging = folder / f".{part_name(number)}.{os.getpid()}"
    counts = shards.write(_shuffled(task), _tokenizer(task["tokenizer"]), staging)
    target = folder / part_name(number)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(staging, target)
    note = {"part": number, "tokens": counts["tokens"]}
    artifact.write_whole(marker(folder, number), json.dumps(note) + "\n")
    return note


@lru_cache(maxsize=1)
def _tokenizer(path: str) -> Any:
    return tokenizer.load(Path(path))


def _shuffled(task: Mapping[str, Any]) -> Iterator[Document]:
    """Yield the documents of a part in shuffled order, with one window of them in memory.

    A part that fits a window is shuffled as a whole. Of a larger one (a compressed file is never split) the row groups
    are shuffled, and then the documents within each window of row groups.
    """
    number, seed = int(task["number"]), int(task["seed"])
    with pq.ParquetFile(part_file(Path(task["work"]) / "select" / task["split"], number)) as file:
        for window in _windows(file, seed, number):
            table = file.read_row_groups(list(window), columns=["id", "text"])
            purpose = f"documents/{window[0]}" if len(window) < file.num_row_groups else "documents"
            for i in permute(range(len(table)), len(table), seed, number, purpose).tolist():
                yield Document(table["id"][i].as_py(), table["text"][i].as_py())


def _windows(file: pq.ParquetFile, seed: int, number: int) -> Iterator[list[int]]:
    """Yield lists of row groups of at most 256 MB, or of a single larger group."""
    count = file.num_row_groups
    sizes = [file.metadata.row_group(group).total_byte_size for group in range(count)]
    if sum(sizes) <= _WINDOW_BYTES:
        yield list(range(count))
        return
    window, size = list[int](), 0
    for group in permute(range(count), count, seed, number, "row groups").tolist():
        if window and size + sizes[group] > _WINDOW_BYTES:
            yield window
            window, size = [], 0
        window.append(group)
        size += sizes[group]
    yield window


def _texts(work: Path, split: str) -> Iterator[str]:
    for path in in_order(work / "select" / split):
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                yield from file.read_row_group(group, columns=["text"])["text"].to_pylist()
