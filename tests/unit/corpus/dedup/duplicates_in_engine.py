"""The parts of the duplicate tests that run in a process with the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def write_fingerprints(texts: list[str], folder: Path, config: Any, parts: int = 1) -> None:
    """Write documents and fingerprints as the cleaning of some parts does."""
    from daft import col

    from headstart.corpus.dedup.fingerprints import fingerprints, normalize
    from headstart.corpus.parts.engine import evaluate

    for part in range(parts):
        of_part = texts[part::parts]
        doc = pa.array((part << 32) + np.arange(len(of_part)))
        documents = pa.table({"doc": doc, "text": pa.array(of_part, pa.large_string())})
        marks = fingerprints(evaluate(documents, {"normal": normalize(col("text"))})["normal"], config.near.signature)
        columns = {"doc": doc, "characters": pa.array([len(text) for text in of_part])}
        columns |= {name: marks[name] for name in marks.column_names}
        for kind, table in (("documents", documents), ("fingerprints", pa.table(columns))):
            (folder / "clean" / kind).mkdir(parents=True, exist_ok=True)
            pq.write_table(table, folder / "clean" / kind / f"part-{part:05d}.parquet", row_group_size=50)


def find(folder: str, texts: list[str], settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Find the duplicates of some texts under several settings that share a signature."""
    from headstart.corpus.dedup import duplicates

    results, work = [], Path(folder)
    for number, section in enumerate(settings):
        config = duplicates.DuplicatesConfig.model_validate(section)
        if not number:
            write_fingerprints(texts, work, config)
        sizes = duplicates.find(work / "clean", work / "duplicates", config)
        results.append({"found": pq.read_table(work / "duplicates" / "found").to_pylist(), "sizes": sizes})
    return results


def find_in_groups(
    folder: str, texts: list[str], parts: int, limits: list[dict[str, int]]
) -> list[list[dict[str, Any]]]:
    """Find duplicates under several limits of memory and processes."""
    from headstart.corpus.dedup import candidates, duplicates

    results, work, config = [], Path(folder), duplicates.DuplicatesConfig()
    write_fingerprints(texts, work, config, parts)
    for constants in limits:
        for name, value in constants.items():
            assert hasattr(candidates, name)
            setattr(candidates, name, value)
        duplicates.find(work / "clean", work / "duplicates", config)
        results.append(pq.read_table(work / "duplicates" / "found").to_pylist())
        results[-1].append({"groups": len(list((work / "duplicates" / "shingles").iterdir()))})
    return results


def named(folder: str, parts: int, rows: int) -> dict[str, Any]:
    """Write the table of duplicates by id; every second document is a duplicate of the one before it."""
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
    corpus_build._DUPLICATE_ROWS = 100
    corpus_build.write_duplicates(work, work / "named.parquet")
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

    results = []
    for edges in graphs:
        frame = daft.from_pydict({"doc": [max(edge) for edge in edges], "root": [min(edge) for edge in edges]})
        rooted = components(frame, keep).to_pydict()
        results.append({str(doc): root for doc, root in zip(rooted["doc"], rooted["root"], strict=True)})
    return results
