"""Raw text → an index that `headstart search` asks: passages, their vectors, and a graph to find the nearest by."""

from __future__ import annotations

import importlib
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from headstart.core import artifact, config
from headstart.core.config import Section
from headstart.core.errors import DataError, ResourceError
from headstart.corpus.read import readers
from headstart.corpus.read.readers import CorpusConfig, Receipt
from headstart.evaluation.cost import CostConfig, PriceTag
from headstart.stages.runs.folder import RunFolder
from headstart.stages.runs.meter import RecordedMeter
from headstart.stages.search.embedder import BATCH_TOKENS, Embedder
from headstart.tasks.source import require_checkpoint

KIND, VECTORS, PASSAGES = "search index", "vectors.usearch", "passages.parquet"
_TOGETHER = 1024
"""Passages that are embedded in one piece: as many as a crash may cost."""


class PassageSettings(Section):
    """What is found: which pieces of the text."""

    unit: Literal["paragraph", "document"] = Field("paragraph", description="a paragraph is a line of a document")
    min_words: int = Field(10, ge=1, description="shorter ones are left out: headings, captions")
    limit: int | None = Field(None, ge=1, description="the first so many alone; all by default")


class GraphSettings(Section):
    """How vectors are found again: a graph of near neighbours (HNSW, Malkov & Yashunin 2018)."""

    dtype: Literal["f32", "f16", "i8"] = Field("f16", description="how a vector's numbers are kept")
    connectivity: int = Field(16, ge=2, description="neighbours of each vector")
    expansion_add: int = Field(128, ge=1, description="how widely neighbours are looked for when one is added")
    expansion_search: int = Field(256, ge=1, description="how widely they are looked for when one is asked")


class IndexRecipe(Section):
    """A whole index: text, the model that embeds it, and how it is kept."""

    verb: ClassVar[str] = "index"

    output: Path
    model: str = Field(description="a local folder of sentence-transformers; any other Hugging Face folder is averaged")
    corpus: CorpusConfig
    passages: PassageSettings = PassageSettings()
    graph: GraphSettings = GraphSettings()
    batch_tokens: int = Field(BATCH_TOKENS, ge=1, description="tokens in one forward pass, padding included")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="auto: bf16 where the processor multiplies it in hardware"
    )
    cost: CostConfig = CostConfig()


class Passage(NamedTuple):
    """A piece of text, and where it stands: the document, and the number of its line."""

    place: str
    text: str


def run(recipe: IndexRecipe, quiet: bool = False) -> Path:
    """Build the index by a recipe and return its folder; one that was stopped goes on with the vectors that it has."""
    require_checkpoint(recipe.model)
    inputs = {
        "checkpoint": artifact.identity(Path(recipe.model))[:16],
        "text": config.fingerprint(readers.sources(recipe.corpus)),
    }
    folder = RunFolder(recipe.output, recipe, inputs)
    if folder.status == "finished":
        return folder.path
    work = folder.path / "work"
    work.mkdir(exist_ok=True)
    facts: dict[str, Any] = {"recipe": folder.recipe, "parents": {"model": artifact.identity(Path(recipe.model))}}
    with (
        RecordedMeter(folder.path / "cost.json", recipe.cost) as meter,
        artifact.published(folder.path, KIND, index=facts) as staging,
    ):
        facts |= _build(recipe, work, staging, meter, quiet)
        facts["cost"] = meter.tag().to_dict()
    shutil.rmtree(work, ignore_errors=True)
    return folder.path


def summary(folder: Path) -> str:
    """Say what an index holds and what it cost."""
    facts = artifact.read_manifest(folder)["index"]
    size = sum((folder / name).stat().st_size for name in (VECTORS, PASSAGES))
    return "\n".join(
        [
            f"{facts['passages']:,} passages of {facts['documents']:,} documents, {size / 1e6:,.1f} MB",
            f"cost: {PriceTag.from_dict(facts['cost']).sentence()}",
            f'index: {folder} (headstart search {folder} "a question")',
        ]
    )


def graph_library() -> Any:
    """Import the vector index, or say how to get it."""
    try:
        return importlib.import_module("usearch.index")
    except ImportError as error:
        raise ResourceError(
            f"usearch is missing ({error})",
            allowed="Vectors are found by it",
            do="pip install 'headstart[search]'",
        ) from error


def _build(recipe: IndexRecipe, work: Path, staging: Path, meter: RecordedMeter, quiet: bool) -> dict[str, Any]:
    usearch, embedder = graph_library(), Embedder(recipe.model, recipe.precision)
    graph: Any = None
    receipt, written, started = Receipt(), 0, time.monotonic()
    passages = islice(_passages(recipe, receipt), recipe.passages.limit)
    schema = pa.schema([("place", pa.string()), ("text", pa.string())])
    with pq.ParquetWriter(staging / PASSAGES, schema, compression="zstd") as writer:
        for number, chunk in enumerate(_chunks(passages)):
            vectors = _embedded(
                embedder, [passage.text for passage in chunk], work / f"{number:06d}.npy", recipe, meter
            )
            if graph is None:
                kept = recipe.graph.model_dump()
                graph = usearch.Index(ndim=vectors.shape[1], metric="cos", **kept)
            graph.add(np.arange(written, written + len(chunk)), vectors)
            writer.write_table(pa.Table.from_pylist([passage._asdict() for passage in chunk], schema))
            written += len(chunk)
            if not quiet:
                rate = written / (time.monotonic() - started)
                print(f"index: {written:,} passages, {rate:,.0f} a second", file=sys.stderr, flush=True)
    if graph is None:
        raise DataError(
            f"no passage of {', '.join(recipe.corpus.files)} has {recipe.passages.min_words} words",
            allowed="An index holds one passage or more",
            do="Lower passages.min_words or check corpus.text",
        )
    graph.save(str(staging / VECTORS))
    return {
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
    while chunk := list(islice(source, _TOGETHER)):
        yield chunk


def _embedded(
    embedder: Embedder, texts: list[str], path: Path, recipe: IndexRecipe, meter: RecordedMeter
) -> npt.NDArray[np.float32]:
    """Return the vectors of a chunk, from disk if they were computed before the run was stopped."""
    if path.is_file():
        known: npt.NDArray[np.float32] = np.load(path, allow_pickle=False)
        if len(known) == len(texts):
            return known
    vectors = embedder.vectors(texts, recipe.batch_tokens)
    tokens = embedder.tokens(texts)
    meter.tokens, meter.flops = meter.tokens + tokens, meter.flops + tokens * embedder.flops_per_token
    meter.log(0, {})
    staged = path.with_suffix(".staging.npy")
    np.save(staged, vectors, allow_pickle=False)
    staged.replace(path)
    return vectors
