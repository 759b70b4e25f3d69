"""Raw text → an index for `headstart search`: passages, their vectors, and a graph of nearest neighbors."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headstart.checkpoint.names import folder_of
from headstart.core import artifact, config
from headstart.core.errors import DataError
from headstart.core.log import logger
from headstart.corpus.read import readers
from headstart.corpus.read.readers import Receipt
from headstart.evaluation.cost import PriceTag
from headstart.stages.runs.folder import RunFolder, pin_recipe
from headstart.stages.runs.meter import RecordedMeter
from headstart.stages.search import graph as neighbors
from headstart.stages.search.embedder import Embedder
from headstart.stages.search.graph import KIND, PASSAGES, VECTORS
from headstart.stages.search.recipe import IndexRecipe
from headstart.tasks.source import require_checkpoint

_CHUNK = 1024
"""Passages that are embedded before their vectors are saved; a crash loses at most this many."""
_SCHEMA = pa.schema([("place", pa.string()), ("text", pa.string())])


class Passage(NamedTuple):
    """A piece of text, and its position: the id of its document and the number of its line."""

    position: str
    text: str


def run(recipe: IndexRecipe, quiet: bool = False) -> Path:
    """Build an index, or resume an unfinished one with the vectors that it has, and return its folder."""
    recipe = pin_recipe(recipe, {"model": "model"})
    checkpoint = require_checkpoint(recipe.model)
    inputs = {
        "checkpoint": artifact.identity(checkpoint)[:16],
        "text": config.fingerprint(readers.sources(recipe.corpus)),
    }
    with RunFolder(recipe.output, recipe, inputs) as folder:
        if folder.status != "finished":
            _fill(recipe, folder, quiet)
    return folder.path


def _fill(recipe: IndexRecipe, folder: RunFolder, quiet: bool) -> None:
    """Compute the vectors that are missing and publish the index."""
    work = folder.path / "work"
    work.mkdir(exist_ok=True)
    facts: dict[str, Any] = {"recipe": folder.recipe, "parents": {"model": artifact.identity(folder_of(recipe.model))}}
    with artifact.published(folder.path, KIND) as staging:
        with RecordedMeter(folder.path / "cost.json", recipe.cost) as meter:
            facts |= _build(recipe, work, staging.path, meter, quiet)
        staging.facts["index"] = facts | {"cost": meter.tag().to_dict()}
    shutil.rmtree(work, ignore_errors=True)


def summary(folder: Path) -> str:
    """Return lines of text on the size and the cost of an index."""
    facts = artifact.read_manifest(folder)["index"]
    size = sum((folder / name).stat().st_size for name in (VECTORS, PASSAGES))
    return "\n".join(
        [
            f"{facts['passages']:,} passages of {facts['documents']:,} documents, {size / 1e6:,.1f} MB",
            f"cost: {PriceTag.from_dict(facts['cost']).sentence()}",
            f'index: {folder} (headstart search {folder} "a question")',
        ]
    )


def _build(recipe: IndexRecipe, work: Path, staging: Path, meter: RecordedMeter, quiet: bool) -> dict[str, Any]:
    """Write the passages and the graph of their vectors, and return facts for the manifest."""
    neighbors.load_usearch()
    embedder = Embedder(recipe.model, recipe.precision)
    graph: Any = None
    receipt, written, started = Receipt(), 0, time.monotonic()
    passages = islice(_passages(recipe, receipt), recipe.passages.limit)
    with pq.ParquetWriter(staging / PASSAGES, _SCHEMA, compression="zstd") as writer:
        for number, chunk in enumerate(_chunks(passages)):
            texts = [passage.text for passage in chunk]
            vectors = _embed(embedder, texts, work / f"{number:06d}.npy", recipe, meter)
            graph = neighbors.new_graph(vectors.shape[1], recipe.graph) if graph is None else graph
            neighbors.add(graph, vectors)
            writer.write_table(pa.table([[passage.position for passage in chunk], texts], schema=_SCHEMA))
            written += len(chunk)
            if not quiet:
                rate = written / (time.monotonic() - started)
                logger.info(f"index: {written:,} passages, {rate:,.0f} passages/s")
    if graph is None:
        raise DataError(
            f"no passage of {', '.join(recipe.corpus.files)} has {recipe.passages.min_words} words",
            allowed="An index needs at least one passage",
            do="Lower passages.min_words or check corpus.text",
        )
    graph.save(str(staging / VECTORS))
    receipt.warn("index")
    return {
        "reading": receipt.summary(),
        "passages": written,
        "documents": receipt.documents,
        "width": graph.ndim,
        "sources": readers.sources(recipe.corpus),
    }


def _passages(recipe: IndexRecipe, receipt: Receipt) -> Iterator[Passage]:
    for document in readers.documents(recipe.corpus, receipt):
        lines = document.text.splitlines() if recipe.passages.unit == "paragraph" else [document.text]
        for number, line in enumerate(lines):
            if len(line.split()) >= recipe.passages.min_words:
                yield Passage(f"{document.id}#{number}", line.strip())


def _chunks(passages: Iterable[Passage]) -> Iterator[list[Passage]]:
    source = iter(passages)
    while chunk := list(islice(source, _CHUNK)):
        yield chunk


def _embed(
    embedder: Embedder, texts: list[str], path: Path, recipe: IndexRecipe, meter: RecordedMeter
) -> npt.NDArray[np.float32]:
    """Return the vectors of a chunk, from disk if an interrupted run computed them."""
    if path.is_file():
        saved: npt.NDArray[np.float32] = np.load(path, allow_pickle=False)
        if len(saved) == len(texts):
            return saved
    vectors = embedder.vectors(texts, recipe.batch_tokens)
    tokens = embedder.tokens(texts)
    meter.tokens, meter.flops = meter.tokens + tokens, meter.flops + tokens * embedder.flops_per_token
    meter.write_if_due()
    staged = path.with_suffix(".staging.npy")
    np.save(staged, vectors, allow_pickle=False)
    staged.replace(path)
    return vectors
