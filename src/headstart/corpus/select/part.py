"""The last task of each part: drop duplicates, take out boilerplate, keep the proportions, and split.

documents ─ duplicates ─ lines ─ mixture ─ train | validation
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headstart.core.config import Section
from headstart.corpus.dedup import lines
from headstart.corpus.dedup.lines import LinesConfig
from headstart.corpus.parts.dropped import Dropped
from headstart.corpus.parts.files import PartFiles, finished, part_file, part_files
from headstart.corpus.parts.receipt import RowCounts
from headstart.corpus.parts.shingles import Hashes
from headstart.corpus.parts.steps import characters, with_text
from headstart.corpus.select.proportions import chances

SPLITS = ("train", "validation")
COLUMNS = ("id", "source", "url", "language", "evaluation_sets", "key", "text")
_LENGTH_BINS = 24


class SelectSettings(Section):
    """All that a task must know beside the number of its part."""

    folder: Path
    lines: LinesConfig | None
    rates: dict[str, float]
    """What is kept of each "source/language"; all of what is not named."""
    validation: float
    seed: int


def select_part(task: Mapping[str, Any]) -> dict[str, Any]:
    """Write what is left of one part, unless it is finished, and return its books."""
    settings, number = _settings(task["settings"]), int(task["part"])
    before = finished(settings.folder / "select", number)
    if before is not None:
        return before
    note: dict[str, Any] = {"part": number}
    with part_files(settings.folder / "select", number, note) as files:
        note |= _select(settings, number, files)
    return note


@lru_cache(maxsize=4)
def _settings(text: str) -> SelectSettings:
    return SelectSettings.model_validate_json(text)


@lru_cache(maxsize=2)
def _boilerplate(folder: Path) -> Hashes:
    return lines.load(folder)


def losers(folder: Path, number: int) -> dict[int, str]:
    """Return the duplicates of one part, by document, with their kind; sorted files are read in part alone."""
    first = number << 32
    inside = (pc.field("doc") >= first) & (pc.field("doc") < first + (1 << 32))
    found = pq.read_table(folder, columns=["doc", "kind"], filters=inside)
    return dict(zip(found["doc"].to_pylist(), found["kind"].to_pylist(), strict=True))


def _select(settings: SelectSettings, number: int, files: PartFiles) -> dict[str, Any]:
    books = RowCounts()
    lost = losers(settings.folder / "duplicates" / "found", number)
    boilerplate = _boilerplate(settings.folder / "lines") if settings.lines is not None else np.zeros(0, np.uint64)
    facts: dict[str, Counter[str]] = {name: Counter() for name in ("languages", "sources", "lengths", "domains")}
    splits: Counter[str] = Counter()
    dropped = Dropped(files)
    with pq.ParquetFile(part_file(settings.folder / "clean" / "documents", number)) as file:
        # A row group is a batch of cleaning, which is bounded by bytes and not by rows.
        for group in range(file.num_row_groups):
            table = _without_duplicates(file.read_row_group(group), lost, books)
            table = _without_lines(table, settings, boilerplate, books, dropped)
            table = _in_proportion(table, settings, books, dropped)
            for split, rows in _split(table, settings).items():
                if len(rows):
                    files.write(split, rows.select(COLUMNS))
                    splits[split] += len(rows)
                    splits[f"{split} characters"] += characters(rows)
            facts["lengths"].update(_binned(pc.utf8_length(table["text"])))
            facts["domains"].update(_domain(url) for url in table["url"].drop_null().to_pylist())
            facts["languages"].update(language or "unknown" for language in table["language"].to_pylist())
            for source in pc.unique(table["source"]).to_pylist():
                facts["sources"][source] += characters(table.filter(pc.equal(table["source"], source)))
    books.check()
    return {"books": books.to_json(), "splits": dict(splits), "facts": {k: dict(v) for k, v in facts.items()}}


def _booked(books: RowCounts, step: str, before: pa.Table, after: pa.Table, dropped: Mapping[str, int]) -> None:
    entry = books[step]
    entry.rows_in, entry.rows_out = entry.rows_in + len(before), entry.rows_out + len(after)
    entry.characters_in += characters(before)
    entry.characters_out += characters(after)
    entry.dropped.update(dropped)


def _without_duplicates(table: pa.Table, lost: Mapping[int, str], books: RowCounts) -> pa.Table:
    kinds = [lost.get(doc) for doc in table["doc"].to_pylist()]
    after = table.filter(pa.array([kind is None for kind in kinds], pa.bool_()))
    dropped = Counter(f"duplicates.{kind}" for kind in kinds if kind is not None)
    _booked(books, "duplicates", table, after, dropped)
    return after


def _without_lines(
    table: pa.Table, settings: SelectSettings, boilerplate: Hashes, books: RowCounts, dropped: Dropped
) -> pa.Table:
    if settings.lines is None:
        return table
    texts, count, size = lines.without(table["text"], boilerplate)
    changed = with_text(table, texts)
    enough = pc.greater_equal(pc.utf8_length(changed["text"]), settings.lines.min_characters)
    after = changed.filter(enough)
    # Shown as they were: of what is left there is nothing to see.
    _left_out("lines.emptied", table.filter(pc.invert(enough)), "lines", table, after, books, dropped)
    books["lines"].counts.update({"pieces taken out": count, "characters taken out": size})
    return after


def _in_proportion(table: pa.Table, settings: SelectSettings, books: RowCounts, dropped: Dropped) -> pa.Table:
    if not settings.rates:
        return table
    groups = zip(table["source"].to_pylist(), table["language"].to_pylist(), strict=True)
    wanted = np.array([settings.rates.get(f"{source}/{language}", 1.0) for source, language in groups])
    stays = pa.array(chances(table["key"].to_numpy(), settings.seed, "mixture") < wanted)
    after = table.filter(stays)
    _left_out("mixture.sampled_out", table.filter(pc.invert(stays)), "mixture", table, after, books, dropped)
    return after


def _left_out(
    rule: str, gone: pa.Table, step: str, before: pa.Table, after: pa.Table, books: RowCounts, dropped: Dropped
) -> None:
    """Book what a rule took out, and note it with some examples."""
    _booked(books, step, before, after, {rule: len(gone)} if len(gone) else {})
    if len(gone):
        dropped.write(rule, gone)


def _split(table: pa.Table, settings: SelectSettings) -> dict[str, pa.Table]:
    held_out = chances(table["key"].to_numpy(), settings.seed, "validation") < settings.validation
    return {"train": table.filter(pa.array(~held_out)), "validation": table.filter(pa.array(held_out))}


def _binned(sizes: pa.ChunkedArray) -> Counter[str]:
    """Count documents by length, in powers of two of characters."""
    bins = np.minimum(np.log2(np.maximum(sizes.to_numpy(), 1)).astype(np.int64), _LENGTH_BINS)
    found, counts = np.unique(bins, return_counts=True)
    return Counter({str(2**place): int(count) for place, count in zip(found.tolist(), counts.tolist(), strict=True)})


def _domain(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").removeprefix("www.")
    except ValueError:
        return ""
