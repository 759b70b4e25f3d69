"""Gather the facts of a corpus from the corpus itself, and write its datasheet as Markdown, HTML and Croissant."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from headstart.core.pages import charts
from headstart.corpus.datasheet import croissant, page
from headstart.corpus.datasheet import markdown as datasheet_text
from headstart.corpus.dedup import duplicates
from headstart.corpus.parts.files import in_order, part_file
from headstart.corpus.parts.receipt import RowCounts
from headstart.corpus.read.sources import SourceConfig, license_of
from headstart.corpus.select.samples import draw

Note = Mapping[str, Any]
"""What a worker recorded about one part of the corpus."""
_KEPT_SAMPLES = 4
_DROPPED_SAMPLES = 2
_DOMAINS = 100
_TOP = 15
_EXCERPT = 500
_MACHINE_KEYS = ("output", "engine", "max_reject_share")
"""Keys of a recipe that decide where and how a corpus is computed, and not what it contains."""


@dataclass(frozen=True)
class BuildRecord:
    """What the steps of a build recorded."""

    sources: Sequence[SourceConfig]
    identities: Mapping[str, Sequence[Mapping[str, Any]]]
    """Name, size and hash of each file, by source."""
    skipped: Mapping[str, Sequence[str]]
    """Names of files that were not read, by source."""
    counts: RowCounts
    cleaned: Sequence[Note]
    selected: Sequence[Note]
    sets: Sequence[Mapping[str, Any]]
    """The evaluation sets that the corpus was searched for."""
    shards: Mapping[str, Any]


def gather(record: BuildRecord, work: Path, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return all facts as plain JSON types; the same corpus has the same facts on any machine."""
    counts, selected = record.counts, record.selected
    splits = _summed(note["splits"] for note in selected)
    return {
        "title": recipe["title"],
        "answers": dict(recipe["answers"]),
        "sources": [_source(source, record) for source in record.sources],
        "books": counts.to_json(),
        "splits": {
            name: {"documents": splits[name], "characters": splits[f"{name} characters"]}
            for name in ("train", "validation")
        },
        "languages": _top(_summed(note["facts"]["languages"] for note in selected)),
        "lengths": _by_number(_summed(note["facts"]["lengths"] for note in selected)),
        "domains": _top(_summed(note["facts"]["domains"] for note in selected), _DOMAINS),
        "personal": dict(sorted(counts["personal"].counts.items())) if "personal" in counts.steps else {},
        "sets": [_set(entry, record) for entry in record.sets],
        "clusters": _clusters(work),
        "samples": {"kept": _kept(work, int(recipe["seed"])), "dropped": _dropped(work)},
        "shards": dict(record.shards),
        "recipe": {key: value for key, value in recipe.items() if key not in _MACHINE_KEYS},
    }


def write(facts: Mapping[str, Any], folder: Path, corpus: Path) -> None:
    """Write DATASHEET.md and its picture, datasheet.html, croissant.json and receipt.json of a corpus."""
    files = {
        "waterfall.svg": charts.standalone(page.waterfall(facts["books"])),
        "DATASHEET.md": datasheet_text.render(facts),
        "datasheet.html": page.render(facts),
        "receipt.json": json.dumps(facts["books"], indent=2, ensure_ascii=False) + "\n",
        "croissant.json": json.dumps(croissant.describe(facts, corpus), indent=2, ensure_ascii=False) + "\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def _summed(counts: Any) -> Counter[str]:
    total: Counter[str] = Counter()
    for part in counts:
        total.update(part)
    return total


def _top(counts: Counter[str], number: int | None = None) -> dict[str, int]:
    ordered = sorted(((name, count) for name, count in counts.items() if name), key=lambda item: (-item[1], item[0]))
    return dict(ordered[:number])


def _by_number(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: int(item[0])))


def _source(source: SourceConfig, record: BuildRecord) -> dict[str, Any]:
    files, skipped = record.identities[source.name], record.skipped[source.name]
    counts = [RowCounts.from_json(note["books"]) for note in record.cleaned if note["source"] == source.name]
    return {
        "name": source.name,
        "files": len(files),
        "bytes": sum(int(file["bytes"]) for file in files),
        "license": license_of(source),
        "rows": sum(part["read"].rows_in for part in counts),
        "rejects": sum(part["read"].dropped["rejects"] for part in counts),
        "characters": sum(part["read"].characters_in for part in counts),
        "characters_kept": sum(note["facts"]["sources"].get(source.name, 0) for note in record.selected),
        "hashes": [dict(file) for file in files[:_TOP]],
        "files_passed_over": len(skipped),
        "passed_over": list(skipped[:_TOP]),
    }


def _set(entry: Mapping[str, Any], record: BuildRecord) -> dict[str, Any]:
    first, count = int(entry["first_item"]), int(entry["items"])
    items = {item for note in record.cleaned for item in note["items_found"] if first <= item < first + count}
    return {
        "set": entry["set"],
        "items": count,
        "too_short": entry["too_short"],
        "items_found": len(items),
        "documents": record.counts["contamination"].counts[f"documents with {entry['set']}"],
    }


def _clusters(work: Path) -> list[dict[str, Any]]:
    """Return the size, the kept document and the beginning of its text for the largest groups of duplicates."""
    groups = duplicates.largest(work / "duplicates" / "found", _TOP)
    return [{"members": dropped + 1, **_document(work, kept)} for kept, dropped in groups]


def _document(work: Path, doc: int) -> dict[str, Any]:
    path = part_file(work / "clean" / "documents", doc >> 32)
    row = pq.read_table(path, columns=["id", "text"], filters=[("doc", "=", doc)])
    return {"id": row["id"][0].as_py(), "text": row["text"][0].as_py()[:_EXCERPT]}


def _kept(work: Path, seed: int) -> list[dict[str, Any]]:
    """Return a few documents of the corpus, drawn at random."""
    rows = draw(in_order(work / "select" / "train"), _KEPT_SAMPLES, seed)
    return [{**row, "text": row["text"][:_EXCERPT]} for row in rows]


def _dropped(work: Path) -> dict[str, list[dict[str, Any]]]:
    """Return up to two documents for each rule that dropped any."""
    files = [*in_order(work / "clean" / "dropped"), *in_order(work / "select" / "dropped")]
    samples: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        table = pq.read_table(file, filters=pc.field("text").is_valid())
        for row in table.select(["rule", "id", "source", "text"]).to_pylist():
            of_rule = samples.setdefault(row.pop("rule"), [])
            if len(of_rule) < _DROPPED_SAMPLES and row["text"].strip():
                of_rule.append({**row, "text": row["text"][:_EXCERPT]})
    return dict(sorted(samples.items()))
