"""Inspect a corpus: its figures, what was dropped and why, samples, and the difference between two corpora."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headstart.core import artifact, renames
from headstart.core.errors import ArtifactError, RecipeError
from headstart.core.registry import suggest
from headstart.corpus.parts.receipt import RowCounts
from headstart.corpus.select.part import SPLITS
from headstart.corpus.select.samples import draw

WORK = "work"
"""Folder of the intermediate files of a build."""
_EXCERPT = 400


def stats(folder: Path) -> dict[str, Any]:
    """Return the facts and the cost of a corpus from its manifest."""
    manifest = _manifest(folder)
    return {"folder": str(folder), **renames.upgrade(manifest["facts"]), "cost": manifest["cost"]}


def render_stats(facts: Mapping[str, Any]) -> str:
    """Return the receipt, the splits and the speed of each step as text."""
    lines = RowCounts.from_json(facts["books"]).lines()
    for split in SPLITS:
        sizes = facts["splits"][split]
        lines.append(f"{split}: {sizes['documents']:,} documents, {sizes['characters']:,} characters")
    steps = facts["cost"]["steps"]
    lines.append(
        "speed of one worker: " + ", ".join(f"{name} {step['mb_per_second']:g} MB/s" for name, step in steps.items())
    )
    lines.append(f"datasheet: {Path(facts['folder']) / 'DATASHEET.md'} and datasheet.html")
    return "\n".join(lines)


def explain(folder: Path, number: int, rule: str | None = None) -> dict[str, list[dict[str, Any]]]:
    """Return up to `number` documents that each rule dropped, or one rule, with the beginning of their text.

    For an unfinished corpus, these are the documents that cleaning has dropped so far.
    """
    unfinished = folder / WORK / "clean"
    if not artifact.is_complete(folder) and unfinished.is_dir():
        notes = (json.loads(marker.read_text(encoding="utf-8")) for marker in sorted(unfinished.glob("part-*.json")))
        steps, folder = RowCounts.of_parts(notes).to_json(), unfinished
    else:
        steps = _manifest(folder)["facts"]["books"]
    counts = {name: n for step in steps for name, n in step["dropped"].items()}
    if rule is not None and rule not in counts:
        raise RecipeError(
            f"no rule {rule!r} dropped anything in {folder}{suggest(rule, counts)}",
            allowed=f"Rules that dropped documents: {', '.join(sorted(counts)) or 'none'}",
        )
    shown: dict[str, list[dict[str, Any]]] = {
        name: [{"count": counts[name]}] for name in sorted(counts) if rule in (None, name)
    }
    for file in sorted((folder / "dropped").glob("*.parquet")):
        table = pq.read_table(file, filters=[("rule", "in", list(shown))]) if shown else pa.table({})
        for row in table.filter(pc.is_valid(table["text"])).to_pylist() if shown else []:
            if len(shown[row["rule"]]) <= number:
                shown[row["rule"]].append({**row, "text": row["text"][:_EXCERPT]})
    return shown | _duplicates(folder, number, shown)


def _duplicates(folder: Path, number: int, shown: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the pairs of the duplicate rules and the rejects, which are stored in separate files."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for name in shown:
        if name.startswith("duplicates."):
            pairs = pq.read_table(folder / "duplicates.parquet")
            of_kind = pairs.filter(pc.equal(pairs["kind"], name.partition(".")[2])).slice(0, number)
            rows[name] = [*shown[name], *of_kind.to_pylist()]
        elif name == "rejects":
            path = folder / "rejects.parquet"
            rejects = pq.read_table(path if path.is_file() else folder / "rejects").slice(0, number).to_pylist()
            rows[name] = [*shown[name], *({**row, "raw": repr(row["raw"])} for row in rejects)]
    return rows


def render_explained(shown: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return dropped documents as text, grouped by rule."""
    blocks = []
    for rule, (head, *rows) in shown.items():
        lines = [f"{rule}: {head['count']:,} dropped"]
        for row in rows:
            text = str(row.get("text", "")).replace("\n", "\n      ")
            facts = {key: value for key, value in row.items() if key not in ("text", "rule")}
            lines.append("  - " + ", ".join(f"{key} {value}" for key, value in facts.items()))
            if text:
                lines.append(f"      {text}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) or "nothing was dropped"


def sample(folder: Path, number: int, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
    """Return documents of a corpus drawn at random; the same seed draws the same documents."""
    _manifest(folder)
    return draw(_files(folder, split), number, seed)


def render_sample(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return documents as text, one after another."""
    return "\n\n".join(f"{row['source']}, {row['id']} ({row['language']})\n{row['text']}" for row in rows)


def diff(first: Path, second: Path) -> dict[str, Any]:
    """Compare two corpora: documents in both and in only one of them, by normalized text, and drops step by step."""
    facts = [_manifest(folder)["facts"] for folder in (first, second)]
    keys = [
        np.unique(np.concatenate([np.zeros(0, np.uint64), *(_keys(p) for s in SPLITS for p in _files(folder, s))]))
        for folder in (first, second)
    ]
    common = len(np.intersect1d(keys[0], keys[1], assume_unique=True))
    steps = {}
    by_name = [{step["step"]: step for step in fact["books"]} for fact in facts]
    for name in dict.fromkeys([*by_name[0], *by_name[1]]):
        sides = [side.get(name, {}).get("dropped", {}) for side in by_name]
        changed = {
            rule: [sides[0].get(rule, 0), sides[1].get(rule, 0)]
            for rule in sorted({*sides[0], *sides[1]})
            if sides[0].get(rule, 0) != sides[1].get(rule, 0)
        }
        if changed:
            steps[name] = changed
    return {
        "documents": [len(keys[0]), len(keys[1])],
        "in both": common,
        "only in the first": len(keys[0]) - common,
        "only in the second": len(keys[1]) - common,
        "characters": [sum(fact["splits"][s]["characters"] for s in SPLITS) for fact in facts],
        "dropped differently": steps,
    }


def _keys(path: Path) -> Any:
    return pq.read_table(path, columns=["key"])["key"].to_numpy()


def _files(folder: Path, split: str) -> list[Path]:
    return sorted((folder / "documents" / split).glob("*.parquet"))


def _manifest(folder: Path) -> dict[str, Any]:
    manifest = artifact.read_manifest(folder)
    if manifest.get("kind") != "corpus":
        raise ArtifactError(f"{folder} is a {manifest.get('kind')}, not a corpus", do="Check the path")
    return manifest
