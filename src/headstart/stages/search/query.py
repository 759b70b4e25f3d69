"""Questions to an index: the passages whose vectors are nearest to the question's."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from headstart.core import artifact
from headstart.core.errors import ArtifactError
from headstart.stages.search.embedder import Embedder
from headstart.stages.search.index import KIND, PASSAGES, VECTORS, graph_library

_WIDTH = 100


class Searcher:
    """An open index: its model in memory, its vectors mapped from disk."""

    def __init__(self, folder: Path) -> None:
        """Verify the folder, and that this model embedded its passages; `seconds` says how long that took."""
        started = time.perf_counter()
        manifest = artifact.verify(folder)
        if manifest["kind"] != KIND:
            raise ArtifactError(
                f"{folder} is a {manifest['kind']}",
                allowed="search takes the output of `headstart index`",
                do="Build one by `headstart index`",
            )
        facts = manifest["index"]
        model = Path(facts["recipe"]["model"])
        self.embedder = Embedder(model, facts["recipe"]["precision"])
        if artifact.identity(model) != facts["parents"]["model"]:
            raise ArtifactError(
                f"{model} is not the model that embedded the passages of {folder}",
                allowed="Questions and passages are embedded by one model",
                do="Restore that model, or build the index again",
            )
        self.graph = graph_library().Index.restore(str(folder / VECTORS), view=True)
        # The file does not keep how widely it is to be searched.
        self.graph.expansion_search = facts["recipe"]["graph"]["expansion_search"]
        self.passages = pq.read_table(folder / PASSAGES, memory_map=True)
        self.embedder.vectors(["a question"])  # The first pass sets up what later ones use.
        self.seconds = time.perf_counter() - started

    def ask(self, question: str, count: int = 5) -> dict[str, Any]:
        """Return the nearest passages, the best first, each with its cosine, and the milliseconds it took."""
        started = time.perf_counter()
        matches = self.graph.search(self.embedder.vectors([question])[0], count)
        rows = self.passages.take(matches.keys.astype("int64")).to_pylist()
        found = [{"score": 1 - float(distance), **row} for distance, row in zip(matches.distances, rows, strict=True)]
        return {"question": question, "milliseconds": 1000 * (time.perf_counter() - started), "passages": found}


def run(folder: Path, questions: Sequence[str], count: int = 5) -> list[dict[str, Any]]:
    """Open an index and answer questions."""
    searcher = Searcher(folder)
    return [searcher.ask(question, count) for question in questions]


def render(answer: dict[str, Any]) -> str:
    """Say what was found in lines."""
    lines = []
    for passage in answer["passages"]:
        lines.append(f"{passage['score']:.3f}  {passage['place']}")
        lines.append(textwrap.fill(passage["text"], _WIDTH, initial_indent="    ", subsequent_indent="    "))
    count = len(answer["passages"])
    return "\n".join([*lines, f"{count} passage{'s' * (count != 1)} in {answer['milliseconds']:.0f} ms"])
