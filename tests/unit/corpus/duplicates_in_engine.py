"""What tests of duplicates do where the engine is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def fingerprinted(texts: list[str], folder: Path, config: Any, parts: int = 1) -> None:
    """Write documents and fingerprints as the cleaning of some parts does."""
    from daft import col

    from headstart.corpus.dedup.fingerprints import fingerprints, normal
    from headstart.corpus.parts.engine import evaluate

    for part in range(parts):
        mine = texts[part::parts]
        doc = pa.array((part << 32) + np.arange(len(mine)))
        table = pa.table({"doc": doc, "text": pa.array(mine, pa.large_string())})
        marks = fingerprints(evaluate(table, {"normal": normal(col("text"))})["normal"], config.near.signature)
        told = {"doc": doc, "characters": pa.array([len(text) for text in mine])}
        for kind, made in (("documents", table), ("fingerprints", pa.table({**told, **_columns(marks)}))):
            (folder / "clean" / kind).mkdir(parents=True, exist_ok=True)
            pq.write_table(made, folder / "clean" / kind / f"part-{part:05d}.parquet", row_group_size=50)


def _columns(table: pa.Table) -> dict[str, Any]:
    return {name: table[name] for name in table.column_names}


def find(folder: str, texts: list[str], settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Look for the duplicates of some texts, in several ways that share a signature."""
    from headstart.corpus.dedup import duplicates

    found, home = [], Path(folder)
    for number, one in enumerate(settings):
        config = duplicates.DuplicatesConfig.model_validate(one)
        if not number:
            fingerprinted(texts, home, config)
        sizes = duplicates.find(home / "clean", home / "duplicates", config)
        found.append({"found": pq.read_table(home / "duplicates" / "found").to_pylist(), "sizes": sizes})
    return found


def find_in_groups(folder: str, texts: list[str], parts: int, ways: list[dict[str, int]]) -> list[list[dict[str, Any]]]:
    """Look for duplicates with other bounds on what is held and on who does the work."""
    from headstart.corpus.dedup import candidates, duplicates

    found, home, config = [], Path(folder), duplicates.DuplicatesConfig()
    fingerprinted(texts, home, config, parts)
    for way in ways:
        for name, value in way.items():
            assert hasattr(candidates, name)
            setattr(candidates, name, value)
        duplicates.find(home / "clean", home / "duplicates", config)
        found.append(pq.read_table(home / "duplicates" / "found").to_pylist())
        found[-1].append({"groups": len(list((home / "duplicates" / "shingles").iterdir()))})
    return found


def named(folder: str, parts: int, rows: int) -> dict[str, Any]:
    """Write the table of duplicates by their ids, every second document being one of the document before it."""
    from headstart.corpus.dedup import duplicates
    from headstart.stages.corpus import build as corpus_build

    work, pairs = Path(folder), []
    for kind in ("clean/documents", "duplicates/found"):
        (work / kind).mkdir(parents=True)
    for part in range(parts):
        doc = (part << 32) + np.arange(rows)
        ids = {"id": [f"{part}:{row}" for row in range(rows)], "source": [f"s{part}"] * rows}
        pq.write_table(pa.table({"doc": doc, **ids}), work / "clean" / "documents" / f"part-{part:05d}.parquet")
        pairs.append(np.stack([doc[1::2], np.full(rows // 2, doc[0]) if part == 1 else doc[:-1:2]]))
    doc, kept = np.concatenate(pairs, axis=1)[:, ::-1]
    columns = {"doc": doc, "kept": kept, "kind": ["near"] * len(doc), "jaccard": np.full(len(doc), 0.9)}
    pq.write_table(pa.table(columns), work / "duplicates" / "found" / "a.parquet")
    corpus_build._NAMED_ROWS = 100
    corpus_build.write_named(work, work / "named.parquet")
    written = pq.ParquetFile(work / "named.parquet")
    groups = [written.metadata.row_group(number).num_rows for number in range(written.num_row_groups)]
    top = duplicates.largest(work / "duplicates" / "found", 3)
    return {"rows": written.read().to_pylist(), "groups": groups, "largest": top}


def root_of(folder: str, graphs: list[list[list[int]]]) -> list[dict[str, int]]:
    """Return the root of each document of several graphs."""
    import daft

    from headstart.corpus.dedup.components import components

    def keep(table: Any, name: str) -> Any:
        return daft.from_arrow(table.to_arrow())

    found = []
    for edges in graphs:
        frame = daft.from_pydict({"doc": [max(edge) for edge in edges], "root": [min(edge) for edge in edges]})
        rooted = components(frame, keep).to_pydict()
        found.append({str(doc): root for doc, root in zip(rooted["doc"], rooted["root"], strict=True)})
    return found
