"""What tests of duplicates do where the engine is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def fingerprinted(texts: list[str], folder: Path, config: Any) -> None:
    """Write documents and fingerprints as the cleaning of one part does."""
    from daft import col

    from headstart.corpus.engine import evaluate
    from headstart.corpus.fingerprints import fingerprints, normal

    doc = pa.array(np.arange(len(texts)))
    table = pa.table({"doc": doc, "text": pa.array(texts, pa.large_string())})
    marks = fingerprints(evaluate(table, {"normal": normal(col("text"))})["normal"], config.near.signature)
    told = {"doc": doc, "characters": pa.array([len(text) for text in texts])}
    for kind, made in (("documents", table), ("fingerprints", pa.table({**told, **_columns(marks)}))):
        (folder / "clean" / kind).mkdir(parents=True, exist_ok=True)
        pq.write_table(made, folder / "clean" / kind / "part-00000.parquet")


def _columns(table: pa.Table) -> dict[str, Any]:
    return {name: table[name] for name in table.column_names}


def find(folder: str, texts: list[str], settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Look for the duplicates of some texts, in several ways that share a signature."""
    from headstart.corpus import duplicates

    found, home = [], Path(folder)
    for number, one in enumerate(settings):
        config = duplicates.DuplicatesConfig.model_validate(one)
        if not number:
            fingerprinted(texts, home, config)
        sizes = duplicates.find(home / "clean", home / "duplicates", config)
        found.append({"found": pq.read_table(home / "duplicates" / "found").to_pylist(), "sizes": sizes})
    return found


def root_of(folder: str, graphs: list[list[list[int]]]) -> list[dict[str, int]]:
    """Return the root of each document of several graphs."""
    import daft

    from headstart.corpus.components import components

    def keep(table: Any, name: str) -> Any:
        return daft.from_arrow(table.to_arrow())

    found = []
    for edges in graphs:
        frame = daft.from_pydict({"doc": [max(edge) for edge in edges], "root": [min(edge) for edge in edges]})
        rooted = components(frame, keep).to_pydict()
        found.append({str(doc): root for doc, root in zip(rooted["doc"], rooted["root"], strict=True)})
    return found
