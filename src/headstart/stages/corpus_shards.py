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
from headstart.core.contracts import Document
from headstart.core.randomness import permute
from headstart.corpus.parts import finished
from headstart.corpus.selection import SPLITS
from headstart.stages.corpus import CorpusRecipe
from headstart.tokens import extension, joining, sampling, shards, tokenizer
from headstart.tokens.settings import TokenizerConfig

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
        run(f"shards/{split}", "headstart.stages.corpus_shards:encode_part", tasks)
        order = permute(range(len(held)), len(held), recipe.seed, 0, "parts")
        if not artifact.is_complete(done / split):
            with artifact.staged(done / split, "shards") as staging:
                joining.join([work / "shards" / split / f"part-{held[place]:05d}" for place in order], staging)
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
    staging = folder / f".part-{number:05d}.{os.getpid()}"
    counts = shards.write(_permuted(task), _tokenizer(task["tokenizer"]), staging)
    target = folder / f"part-{number:05d}"
    shutil.rmtree(target, ignore_errors=True)
    os.replace(staging, target)
    note = {"part": number, "tokens": counts["tokens"]}
    artifact.write_whole(folder / f"part-{number:05d}.json", json.dumps(note) + "\n")
    return note


@lru_cache(maxsize=1)
def _tokenizer(path: str) -> Any:
    return tokenizer.load(Path(path))


def _permuted(task: Mapping[str, Any]) -> Iterator[Document]:
    file = Path(task["work"]) / "select" / task["split"] / f"part-{int(task['number']):05d}.parquet"
    table = pq.read_table(file, columns=["id", "text"])
    for place in permute(range(len(table)), len(table), task["seed"], int(task["number"]), "documents").tolist():
        yield Document(table["id"][place].as_py(), table["text"][place].as_py())


def _texts(work: Path, split: str) -> Iterator[str]:
    for path in sorted((work / "select" / split).glob("part-*.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256, columns=["text"]):
                yield from batch.column(0).to_pylist()
