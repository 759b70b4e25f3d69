"""The datasheet of a corpus: facts gathered from the corpus itself, then written as Markdown, HTML and Croissant."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from headstart.corpus.datasheet import croissant
from headstart.corpus.datasheet import markdown as datasheet_text
from headstart.corpus.datasheet import page as datasheet_page
from headstart.corpus.datasheet.charts import waterfall
from headstart.corpus.dedup import duplicates
from headstart.corpus.parts.files import in_order, part_file
from headstart.corpus.parts.receipt import RowCounts
from headstart.corpus.read.sources import SourceConfig, licence_of
from headstart.corpus.select.samples import draw

_SAMPLES = 4
_SHOWN = 2
_DOMAINS = 100
_TOP = 15
_EXCERPT = 500
_OF_THE_PLACE = ("output", "engine", "max_reject_share")
"""What of a recipe says where a corpus is made, and not how."""


def gather(
    *,
    title: str,
    answers: Mapping[str, str],
    sources: Sequence[SourceConfig],
    identities: Mapping[str, Sequence[Mapping[str, Any]]],
    passed_over: Mapping[str, Sequence[str]],
    books: RowCounts,
    cleaned: Sequence[Mapping[str, Any]],
    selected: Sequence[Mapping[str, Any]],
    sets: Sequence[Mapping[str, Any]],
    work: Path,
    shards: Mapping[str, Any],
    recipe: Mapping[str, Any],
) -> dict[str, Any]:
    """Return all facts as plain JSON types; the same corpus has the same facts, on any machine."""
    splits = _summed(note["splits"] for note in selected)
    return {
        "title": title,
        "answers": dict(answers),
        "sources": [
            _source(source, identities[source.name], passed_over[source.name], cleaned, selected) for source in sources
        ],
        "books": books.to_json(),
        "splits": {
            name: {"documents": splits[name], "characters": splits[f"{name} characters"]}
            for name in ("train", "validation")
        },
        "languages": _top(_summed(note["facts"]["languages"] for note in selected)),
        "lengths": _by_number(_summed(note["facts"]["lengths"] for note in selected)),
        "domains": _top(_summed(note["facts"]["domains"] for note in selected), _DOMAINS),
        "personal": dict(sorted(books["personal"].counts.items())) if "personal" in books.steps else {},
        "sets": [_set(entry, cleaned, books) for entry in sets],
        "clusters": _clusters(work),
        "samples": {"kept": _kept(work, int(recipe["seed"])), "dropped": _dropped(work)},
        "shards": dict(shards),
        "recipe": {key: value for key, value in recipe.items() if key not in _OF_THE_PLACE},
    }


def write(facts: Mapping[str, Any], folder: Path, corpus: Path) -> None:
    """Write DATASHEET.md with its picture, datasheet.html, croissant.json and receipt.json of a corpus."""
    pages = {
        "waterfall.svg": waterfall(facts["books"]),
        "DATASHEET.md": datasheet_text.render(facts),
        "datasheet.html": datasheet_page.render(facts),
        "receipt.json": json.dumps(facts["books"], indent=2, ensure_ascii=False) + "\n",
        "croissant.json": json.dumps(croissant.describe(facts, corpus), indent=2, ensure_ascii=False) + "\n",
    }
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")


def _summed(counts: Any) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return total


def _top(counts: Counter[str], number: int | None = None) -> dict[str, int]:
    ordered = sorted(((name, count) for name, count in counts.items() if name), key=lambda item: (-item[1], item[0]))
    return dict(ordered[:number])


def _by_number(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: int(item[0])))


def _source(
    source: SourceConfig, files: Sequence[Mapping[str, Any]], beside: Sequence[str],
    cleaned: Sequence[Mapping[str, Any]], selected: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:  # fmt: skip
    mine = [RowCounts.from_json(note["books"]) for note in cleaned if note["source"] == source.name]
    return {
        "name": source.name,
        "files": len(files),
        "bytes": sum(int(file["bytes"]) for file in files),
        "licence": licence_of(source),
        "rows": sum(books["read"].rows_in for books in mine),
        "rejects": sum(books["read"].dropped["rejects"] for books in mine),
        "characters": sum(books["read"].characters_in for books in mine),
        "characters_kept": sum(note["facts"]["sources"].get(source.name, 0) for note in selected),
        "hashes": [dict(file) for file in files[:_TOP]],
        "files_passed_over": len(beside),
        "passed_over": list(beside[:_TOP]),
    }


def _set(entry: Mapping[str, Any], cleaned: Sequence[Mapping[str, Any]], books: RowCounts) -> dict[str, Any]:
    first, count = int(entry["first_item"]), int(entry["items"])
    found = {item for note in cleaned for item in note["items_found"] if first <= item < first + count}
    documents = books["contamination"].counts[f"documents with {entry['set']}"]
    return {
        "set": entry["set"],
        "items": count,
        "too_short": entry["too_short"],
        "items_found": len(found),
        "documents": documents,
    }


def _clusters(work: Path) -> list[dict[str, Any]]:
    """Describe the largest groups of duplicates."""
    found = duplicates.largest(work / "duplicates" / "found", _TOP)
    return [{"members": dropped + 1, **_document(work, kept)} for kept, dropped in found]


def _document(work: Path, doc: int) -> dict[str, Any]:
    path = part_file(work / "clean" / "documents", doc >> 32)
    row = pq.read_table(path, columns=["id", "text"], filters=[("doc", "=", doc)])
    return {"id": row["id"][0].as_py(), "text": row["text"][0].as_py()[:_EXCERPT]}


def _kept(work: Path, seed: int) -> list[dict[str, Any]]:
    """Draw some documents of the corpus."""
    rows = draw(in_order(work / "select" / "train"), _SAMPLES, seed)
    return [{**row, "text": row["text"][:_EXCERPT]} for row in rows]


def _dropped(work: Path) -> dict[str, list[dict[str, Any]]]:
    """Show a document or two for each rule that dropped some."""
    files = [*in_order(work / "clean" / "dropped"), *in_order(work / "select" / "dropped")]
    shown: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        table = pq.read_table(file, filters=pc.field("text").is_valid())
        for row in table.select(["rule", "id", "source", "text"]).to_pylist():
            mine = shown.setdefault(row.pop("rule"), [])
            if len(mine) < _SHOWN and row["text"].strip():
                mine.append({**row, "text": row["text"][:_EXCERPT]})
    return dict(sorted(shown.items()))
