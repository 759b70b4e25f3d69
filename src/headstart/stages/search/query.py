"""Search an index: the passages whose vectors are nearest to that of a question."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from headstart.checkpoint.names import folder_of
from headstart.core import artifact, config
from headstart.core.errors import ArtifactError
from headstart.stages.search.graph import KIND, PASSAGES, VECTORS, open_graph

_WIDTH = 100


class Searcher:
    """An open index: its model in memory, its vectors mapped from disk."""

    def __init__(self, folder: Path) -> None:
        """Verify the folder and its model, and load both; `seconds` is the time that this takes."""
        started = time.perf_counter()
        manifest = artifact.verify(folder)
        if manifest["kind"] != KIND:
            raise ArtifactError(
                f"{folder} is a {manifest['kind']}, not a search index",
                allowed="`headstart search` takes the output of `headstart index`",
                do="Build an index with `headstart index`",
            )
        facts = manifest["index"]
        model = folder_of(config.expand_saved(facts["recipe"]["model"], folder))
        # Imported here: torch and transformers take seconds, and a wrong folder is refused without them.
        from headstart.stages.search.embedder import Embedder

        self.embedder = Embedder(model, facts["recipe"]["precision"])
        if artifact.identity(model) != facts["parents"]["model"]:
            raise ArtifactError(
                f"{model} is not the model that embedded the passages of {folder}",
                allowed="Questions and passages must be embedded by the same model",
                do="Restore that model, or build the index again",
            )
        self.graph = open_graph(folder / VECTORS, facts["recipe"]["graph"]["expansion_search"])
        # `pq.read_table` and `Table.take` would import pandas, which takes 0.7 s.
        self.passages = pq.ParquetFile(folder / PASSAGES, memory_map=True).read()
        self.embedder.vectors(["a question"])  # Warm up: the first forward pass is slower than later ones.
        self.seconds = time.perf_counter() - started

    def ask(self, question: str, count: int = 5) -> dict[str, Any]:
        """Return the nearest passages, the best first, each with its cosine, and the milliseconds that this took."""
        started = time.perf_counter()
        matches = self.graph.search(self.embedder.vectors([question])[0], count)
        rows = [self.passages.slice(key, 1).to_pylist()[0] for key in matches.keys.tolist()]
        passages = [
            {"score": 1 - float(distance), **row} for distance, row in zip(matches.distances, rows, strict=True)
        ]
        return {"question": question, "milliseconds": 1000 * (time.perf_counter() - started), "passages": passages}


def run(folder: Path, questions: Sequence[str], count: int = 5) -> list[dict[str, Any]]:
    """Open an index and answer questions."""
    searcher = Searcher(folder)
    return [searcher.ask(question, count) for question in questions]


def render(answer: dict[str, Any]) -> str:
    """Format an answer as text."""
    lines = []
    for passage in answer["passages"]:
        lines.append(f"{passage['score']:.3f}  {passage['place']}")
        lines.append(textwrap.fill(passage["text"], _WIDTH, initial_indent="    ", subsequent_indent="    "))
    count = len(answer["passages"])
    return "\n".join([*lines, f"{count} passage{'s' * (count != 1)} in {answer['milliseconds']:.0f} ms"])
