"""The datasheet of a corpus: facts gathered from the corpus itself, then written as Markdown, HTML and Croissant."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headstart.corpus import croissant, datasheet_page, datasheet_text
from headstart.corpus.charts import waterfall
from headstart.corpus.receipt import Books
from headstart.corpus.samples import draw
from headstart.corpus.sources import SourceConfig, licence_of

_SAMPLED_PARTS = 16
_SAMPLES = 4
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
    books: Books,
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
        "sources": [_source(source, identities[source.name], cleaned, selected) for source in sources],
        "books": books.to_json(),
        "splits": {
            name: {"documents": splits[name], "characters": splits[f"{name} characters"]}
            for name in ("train", "validation")
        },
        "languages": _top(_summed(note["facts"]["languages"] for note in selected)),
        "lengths": _by_number(_summed(note["facts"]["lengths"] for note in cleaned)),
        "domains": _top(_summed(note["facts"]["domains"] for note in cleaned)),
        "personal": dict(sorted(books["personal"].counts.items())) if "personal" in books.steps else {},
        "sets": [_set(entry, cleaned, books) for entry in sets],
        "clusters": _clusters(work),
        "samples": {"kept": _kept(work, int(recipe["seed"])), "dropped": _dropped(work)},
        "shards": dict(shards),
        "recipe": {key: value for key, value in recipe.items() if key not in _OF_THE_PLACE},
    }


def write(facts: Mapping[str, Any], folder: Path) -> None:
    """Write DATASHEET.md with its picture, datasheet.html, croissant.json and receipt.json."""
    pages = {
        "waterfall.svg": waterfall(facts["books"]),
        "DATASHEET.md": datasheet_text.render(facts),
        "datasheet.html": datasheet_page.render(facts),
        "receipt.json": json.dumps(facts["books"], indent=2, ensure_ascii=False) + "\n",
        "croissant.json": json.dumps(croissant.describe(facts, folder), indent=2, ensure_ascii=False) + "\n",
    }
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")


def _summed(counts: Any) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return total


def _top(counts: Counter[str]) -> dict[str, int]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {name: count for name, count in ordered if name}


def _by_number(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: int(item[0])))


def _source(
    source: SourceConfig, files: Sequence[Mapping[str, Any]], cleaned: Sequence[Mapping[str, Any]],
    selected: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:  # fmt: skip
    mine = [Books.from_json(note["books"]) for note in cleaned if note["source"] == source.name]
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
    }


def _set(entry: Mapping[str, Any], cleaned: Sequence[Mapping[str, Any]], books: Books) -> dict[str, Any]:
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
    found = pq.read_table(work / "duplicates" / "found", columns=["kept", "kind"])
    if not len(found):
        return []
    sizes = found.group_by("kept").aggregate([("kind", "count")])
    order = sorted(
        zip(sizes["kind_count"].to_pylist(), sizes["kept"].to_pylist(), strict=True), key=lambda i: (-i[0], i[1])
    )
    return [{"members": count + 1, **_document(work, doc)} for count, doc in order[:_TOP]]


def _document(work: Path, doc: int) -> dict[str, Any]:
    path = work / "clean" / "documents" / f"part-{doc >> 32:05d}.parquet"
    row = pq.read_table(path, columns=["id", "text"], filters=[("doc", "=", doc)])
    return {"id": row["id"][0].as_py(), "text": row["text"][0].as_py()[:_EXCERPT]}


def _kept(work: Path, seed: int) -> list[dict[str, Any]]:
    """Draw some documents of the corpus."""
    files = sorted((work / "select" / "train").glob("part-*.parquet"))[:_SAMPLED_PARTS]
    return [{**row, "text": row["text"][:_EXCERPT]} for row in draw(files, _SAMPLES, seed)]


def _dropped(work: Path) -> dict[str, list[dict[str, Any]]]:
    """Show a document or two for each rule that dropped some."""
    files = sorted((work / "clean" / "dropped").glob("part-*.parquet"))[:_SAMPLED_PARTS]
    table = pa.concat_tables([pq.read_table(file) for file in files])
    shown: dict[str, list[dict[str, Any]]] = {}
    for rule in sorted(pc.unique(table["rule"]).to_pylist()):
        mine = table.filter(pc.and_(pc.equal(table["rule"], rule), pc.is_valid(table["text"]))).slice(0, 2)
        rows = mine.select(["id", "source", "text"]).to_pylist()
        shown[rule] = [{**row, "text": row["text"][:_EXCERPT]} for row in rows if row["text"].strip()]
    return shown
