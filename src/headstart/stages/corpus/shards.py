"""The documents of a finished corpus as token shards: encoded part by part in processes, then joined.

Parts come in a permuted order, and documents in a permuted order within their part, both pure functions of the seed;
the bytes are the same however many workers there are.
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
    """Make the tokenizer, encode all parts, and join them into one folder for each split; return counts."""
    assert recipe.tokenizer is not None
    home, done = work / "shards" / "tokenizer", work / "shards" / "done"
    if not artifact.is_complete(home):
        with artifact.staged(home, "tokenizer") as staging:
            _write_tokenizer(recipe.tokenizer, _texts(work, "train"), recipe.seed, staging)
    counts: dict[str, Any] = {}
    for split in SPLITS:
        held = [note["part"] for note in selected if note["splits"].get(split)]
        if not held:
            continue
        tasks = [
            {"number": part, "split": split, "work": str(work), "tokenizer": str(home), "seed": recipe.seed}
            for part in held
        ]
        run(f"shards/{split}", "headstart.stages.corpus.shards:encode_part", tasks)
        order = permute(range(len(held)), len(held), recipe.seed, 0, "parts")
        if not artifact.is_complete(done / split):
            with artifact.staged(done / split, "shards") as staging:
                joining.join([work / "shards" / split / part_name(held[place]) for place in order], staging)
        counts[split] = json.loads((done / split / "counts.json").read_text(encoding="utf-8"))
    return counts


def _write_tokenizer(settings: TokenizerConfig, texts: Iterable[str], seed: int, folder: Path) -> None:
    """Write the tokenizer: a ready one, with the text's words in its vocabulary if asked, or a new one."""
    if settings.path is None:
        tokenizer.train(texts, settings, seed).save_pretrained(str(folder))
    elif settings.extend is None:
        tokenizer.load(settings.path).save_pretrained(str(folder))
    else:
        chunks = sampling.sample(texts, settings.sample_mb, seed)
        extension.extend(tokenizer.load(settings.path), chunks, settings.extend, folder)


def encode_part(task: Mapping[str, Any]) -> dict[str, Any]:
    """Encode the documents of one part of one split, unless that is done."""
    # One thread each: the engine runs as many of these processes as there are cores.
    os.environ["RAYON_NUM_THREADS"] = "1"
    number, folder = int(task["number"]), Path(task["work"]) / "shards" / task["split"]
    before = finished(folder, number)
    if before is not None:
        return before
    staging = folder / f".{part_name(number)}.{os.getpid()}"
    counts = shards.write(_permuted(task), _tokenizer(task["tokenizer"]), staging)
    target = folder / part_name(number)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(staging, target)
    note = {"part": number, "tokens": counts["tokens"]}
    artifact.write_whole(marker(folder, number), json.dumps(note) + "\n")
    return note


@lru_cache(maxsize=1)
def _tokenizer(path: str) -> Any:
    return tokenizer.load(Path(path))


def _permuted(task: Mapping[str, Any]) -> Iterator[Document]:
    """Yield a part's documents in a permuted order, holding a window of them.

    A part that one window holds is permuted as a whole; of a larger one (a packed file is never cut) the row groups
    come in a permuted order, and the documents of as many of them as a window holds are permuted together.
    """
    number, seed = int(task["number"]), int(task["seed"])
    with pq.ParquetFile(part_file(Path(task["work"]) / "select" / task["split"], number)) as file:
        for window in _windows(file, seed, number):
            table = file.read_row_groups(list(window), columns=["id", "text"])
            purpose = f"documents/{window[0]}" if len(window) < file.num_row_groups else "documents"
            for place in permute(range(len(table)), len(table), seed, number, purpose).tolist():
                yield Document(table["id"][place].as_py(), table["text"][place].as_py())


def _windows(file: pq.ParquetFile, seed: int, number: int) -> Iterator[list[int]]:
    """Cut the row groups of a file into lists of so many bytes, or of one group."""
    count = file.num_row_groups
    sizes = [file.metadata.row_group(group).total_byte_size for group in range(count)]
    if sum(sizes) <= _WINDOW_BYTES:
        yield list(range(count))
        return
    window, held = list[int](), 0
    for group in permute(range(count), count, seed, number, "row groups").tolist():
        if window and held + sizes[group] > _WINDOW_BYTES:
            yield window
            window, held = [], 0
        window.append(group)
        held += sizes[group]
    yield window


def _texts(work: Path, split: str) -> Iterator[str]:
    for path in in_order(work / "select" / split):
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                yield from file.read_row_group(group, columns=["text"])["text"].to_pylist()
