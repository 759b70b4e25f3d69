"""The process in which a corpus is built, step by step; each step leaves a marker and is not done again.

parts ─ clean ─ duplicates ─ lines ─ proportions ─ select ─ shards ─ datasheet ─ published
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.core import artifact, config
from headstart.core.errors import DataError, HeadstartError, ResourceError, first_line
from headstart.corpus.clean.part import PartSettings
from headstart.corpus.datasheet import croissant
from headstart.corpus.datasheet import facts as datasheet
from headstart.corpus.datasheet.inspection import WORK
from headstart.corpus.dedup import contamination, duplicates, lines
from headstart.corpus.dedup.fingerprints import SignatureConfig
from headstart.corpus.parts import engine
from headstart.corpus.parts.files import finished, in_order, size_of
from headstart.corpus.parts.receipt import REJECTS as REJECTED
from headstart.corpus.parts.receipt import RowCounts
from headstart.corpus.read import sources
from headstart.corpus.read.batches import REJECTS
from headstart.corpus.select import proportions
from headstart.corpus.select.part import SPLITS, SelectSettings
from headstart.stages.corpus.recipe import CorpusRecipe

NAMED = pa.schema(
    [(name, pa.string()) for name in ("dropped", "dropped_source", "kept", "kept_source", "kind")]
    + [("jaccard", pa.float64())]
)
_NAMED_ROWS = 1 << 16
_MANY_ROWS = 100
_SECONDS = "seconds.json"
_TOLD, _TOLD_NAMES = 3, 5


class Build:
    """One corpus on its way."""

    def __init__(self, recipe: CorpusRecipe, quiet: bool) -> None:
        """Find the parts and start the engine."""
        self.recipe, self.quiet = recipe, quiet
        self.folder, self.work = recipe.output, recipe.output / WORK
        self.work.mkdir(parents=True, exist_ok=True)
        self.parts = sources.parts_of(recipe.sources, recipe.reading.part_mb)
        self.seconds = self._spent_before()
        self.sizes: dict[str, Any] = {}
        engine.start(recipe.engine)

    def run(self) -> None:
        """Do what is not done yet."""
        sets = self._once("contamination", self._contamination)
        cleaned = self._tasks(
            "clean", "headstart.corpus.clean.part:clean_part", self._cleaning(), _require_something_read
        )
        books = RowCounts.of_parts(cleaned)
        self._say_books(books)
        passed_over = {source.name: sources.passed_over(source) for source in self.recipe.sources}
        self._say_passed_over(passed_over)
        first = next((note["first_reject"] for note in cleaned if note["first_reject"]), "")
        books.require_few_rejects("read", self.recipe.max_reject_share, first, self.folder)
        self.sizes["duplicates"] = self._once("duplicates", self._duplicates)
        self.sizes["lines"] = self._once("lines", self._lines)
        rates = self._once("rates", self._rates)
        selected = self._tasks("select", "headstart.corpus.select.part:select_part", self._selecting(rates))
        chosen = RowCounts.of_parts(selected)
        self._say_books(chosen)
        books.add(chosen)
        books.check()
        if not sum(note["splits"].get("train", 0) for note in selected):
            raise DataError(
                f"nothing is left of {books['read'].rows_in:,} rows",
                allowed="A corpus holds one document or more",
                do=f"`headstart corpus explain {self.folder}` shows what the rules dropped",
            )
        shards = self._timed("shards", lambda: self._shards(selected))
        self._publish(books, cleaned, selected, sets, shards, passed_over)

    def _say_passed_over(self, passed_over: Mapping[str, list[str]]) -> None:
        """Name what lies in the sources' folders and is not read, which a typing error may be behind."""
        for source, names in passed_over.items():
            if names:
                more = f" and {len(names) - _TOLD_NAMES:,} more" if len(names) > _TOLD_NAMES else ""
                self._say(f"{source}: not read: {', '.join(names[:_TOLD_NAMES])}{more}")

    def _contamination(self) -> list[dict[str, Any]]:
        if self.recipe.contamination is None:
            return []
        return list(contamination.write_table(self.recipe.contamination, self.work / "evaluation.parquet"))

    def _cleaning(self) -> list[dict[str, Any]]:
        recipe, near = self.recipe, self.recipe.duplicates and self.recipe.duplicates.near
        settings = PartSettings(
            sources=recipe.sources, clean=recipe.clean, contamination=recipe.contamination,
            signature=near.signature if near else SignatureConfig(), longest_mb=recipe.reading.longest_mb,
            folder=self.work, table=self.work / "evaluation.parquet",
        ).model_dump_json()  # fmt: skip
        return [{"part": part.to_json(), "number": part.number, "settings": settings} for part in self.parts]

    def _duplicates(self) -> dict[str, Any]:
        target = self.work / "duplicates"
        if self.recipe.duplicates is None:
            (target / "found").mkdir(parents=True, exist_ok=True)
            pq.write_table(duplicates.SCHEMA.empty_table(), target / "found" / "none.parquet")
            return {}
        sizes = duplicates.find(self.work / "clean", target, self.recipe.duplicates, self.recipe.engine)
        return {"fingerprints": size_of(self.work / "clean" / "fingerprints"), **sizes}

    def _left(self, kind: str, *columns: str) -> Any:
        """Return a frame over a kind of the parts' tables, without the duplicates."""
        gone = engine.frame(self.work / "duplicates" / "found", "doc")
        return engine.frame(self.work / "clean" / kind, "doc", *columns).join(gone, on="doc", how="anti")

    def _lines(self) -> dict[str, Any]:
        if self.recipe.lines is None:
            return {}
        shutil.rmtree(self.work / "lines", ignore_errors=True)
        found = lines.repeated(self._left("lines", "line"), self.recipe.lines.documents)
        found.write_parquet(str(self.work / "lines"), compression="zstd")
        return {**size_of(self.work / "clean" / "lines"), "repeated": len(lines.load(self.work / "lines"))}

    def _rates(self) -> dict[str, float]:
        """Return what is kept of each source and language; nothing where all is kept as it comes."""
        from daft import col

        weights = {source.name: source.weight for source in self.recipe.sources}
        if self.recipe.mixture.exponent is None and (len(weights) == 1 or None in weights.values()):
            return {}
        sized = self._left("fingerprints", "source", "language", "characters")
        sums = sized.groupby("source", "language").agg(col("characters").sum()).to_pydict()
        groups = zip(sums["source"], [language or "" for language in sums["language"]], strict=True)
        sizes = dict(zip(groups, sums["characters"], strict=True))
        found = proportions.rates(sizes, weights, self.recipe.mixture.exponent)
        return {f"{source}/{language or None}": rate for (source, language), rate in sorted(found.items())}

    def _selecting(self, rates: dict[str, float]) -> list[dict[str, Any]]:
        settings = SelectSettings(
            folder=self.work, lines=self.recipe.lines, rates=rates, validation=self.recipe.validation,
            seed=self.recipe.seed,
        ).model_dump_json()  # fmt: skip
        return [{"part": part.number, "number": part.number, "settings": settings} for part in self.parts]

    def _shards(self, selected: Sequence[dict[str, Any]]) -> dict[str, Any]:
        if self.recipe.tokenizer is None:
            return {}
        # Imported here: transformers takes seconds, and most corpora are not encoded.
        from headstart.stages.corpus import shards as corpus_shards

        return corpus_shards.write(self.recipe, self.work, selected, self._tasks)

    def _publish(
        self, books: RowCounts, cleaned: Sequence[dict[str, Any]], selected: Sequence[dict[str, Any]],
        sets: Sequence[dict[str, Any]], shards: dict[str, Any], passed_over: Mapping[str, list[str]],
    ) -> None:  # fmt: skip
        facts = datasheet.gather(
            title=self.recipe.title, answers=self.recipe.answers, sources=self.recipe.sources,
            identities=sources.identities(self.recipe.sources), passed_over=passed_over, books=books,
            cleaned=cleaned, selected=selected,
            sets=sets, work=self.work, shards=shards, recipe=config.to_dict(self.recipe),
        )  # fmt: skip
        megabytes = sum(note["bytes"] for note in cleaned) / 1e6
        cost = {
            "seconds": self.seconds,
            "steps": _rates_of(cleaned, megabytes),
            "megabytes": megabytes,
            "shuffled": self.sizes,
            "engine": config.to_dict(self.recipe.engine),
        }
        written: dict[str, Any] = {}
        with artifact.published(
            self.folder, "corpus", recipe=config.to_dict(self.recipe), seed=self.recipe.seed, facts=facts, cost=cost,
            croissant=written,
        ) as staging:  # fmt: skip
            self._link(staging)
            datasheet.write(facts, staging, staging)
            written["conforms_to"] = croissant.CONFORMS_TO
        shutil.rmtree(self.work, ignore_errors=True)

    def _link(self, staging: Path) -> None:
        """Bring documents, drops, rejects and shards into the artifact; links, so that a crash loses nothing."""
        for split in SPLITS:
            _linked(self.work / "select" / split, staging / "documents" / split)
        _linked(self.work / "clean" / "dropped", staging / "dropped")
        # What leaves when the corpus is put together stands behind what leaves by cleaning.
        _linked(self.work / "select" / "dropped", staging / "dropped", "selected-")
        with pq.ParquetWriter(staging / "rejects.parquet", REJECTS, compression="zstd") as out:
            for file in in_order(self.work / "clean" / "rejects"):
                out.write_table(pq.read_table(file))
        write_named(self.work, staging / "duplicates.parquet")
        if (self.work / "shards" / "done").is_dir():
            shutil.copytree(self.work / "shards" / "done", staging / "shards", copy_function=link)
            shutil.copytree(self.work / "shards" / "tokenizer", staging / "tokenizer", copy_function=link)

    def _tasks(
        self, step: str, function: str, tasks: Sequence[dict[str, Any]],
        check: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Run what is not finished of some tasks, each checked as it ends, and return the notes of all, in order."""
        folder = self.work / step
        folder.mkdir(parents=True, exist_ok=True)
        left = [task for task in tasks if finished(folder, task["number"]) is None]
        if left:
            done = len(tasks) - len(left)
            started = time.monotonic()
            for ended in engine.run_tasks(function, left, self.recipe.engine):
                done += 1
                check(ended)
                self._say(f"{step}: part {done} of {len(tasks)}")
                started = self._spend(step, started)
        return [note for task in tasks if (note := finished(folder, task["number"])) is not None]

    def _once(self, step: str, work: Callable[[], Any]) -> Any:
        """Do a step that has no parts, unless its marker is there, and return what it noted."""
        marker = self.work / f"{step}.json"
        if not marker.is_file():
            noted = self._timed(step, work)
            artifact.write_whole(marker, json.dumps(noted) + "\n")
        return json.loads(marker.read_text(encoding="utf-8"))

    def _timed(self, step: str, work: Callable[[], Any]) -> Any:
        started = time.monotonic()
        found = work()
        self._spend(step, started)
        return found

    def _spent_before(self) -> dict[str, float]:
        """Return the seconds that earlier runs of this corpus took for what is done."""
        try:
            spent: dict[str, float] = json.loads((self.work / _SECONDS).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return spent

    def _spend(self, step: str, since: float) -> float:
        """Add the seconds since a moment to a step's, for this run and for one that goes on with it; return now."""
        now = time.monotonic()
        self.seconds[step] = round(self.seconds.get(step, 0.0) + now - since, 3)
        artifact.write_whole(self.work / _SECONDS, json.dumps(self.seconds) + "\n")
        return now

    def _say_books(self, books: RowCounts) -> None:
        books.check()
        for line in books.lines():
            self._say(line)

    def _say(self, line: str) -> None:
        if not self.quiet:
            print(f"corpus: {line}", file=sys.stderr, flush=True)


def _require_something_read(note: Mapping[str, Any]) -> None:
    """Stop at the first part of which nothing can be read: the recipe, more likely than the files, is at fault."""
    read = RowCounts.from_json(note["books"])["read"]
    if read.rows_in >= _MANY_ROWS and read.dropped[REJECTED] == read.rows_in:
        raise DataError(
            f"none of the first {read.rows_in:,} rows of a file of source {note['source']!r} can be read; "
            f"the first is {note['first_reject']}",
            do="Check the source's files, format and columns in the recipe",
        )


def _rates_of(cleaned: Sequence[dict[str, Any]], megabytes: float) -> dict[str, dict[str, float]]:
    """Return the seconds of each cleaning step over all workers, and megabytes a second of one."""
    seconds: Counter[str] = Counter()
    for note in cleaned:
        seconds.update(note["seconds"])
    return {
        name: {"seconds": round(value, 2), "mb_per_second": round(megabytes / value, 1) if value else 0.0}
        for name, value in seconds.items()
    }


def _linked(source: Path, target: Path, prefix: str = "") -> None:
    target.mkdir(parents=True, exist_ok=True)
    for file in in_order(source):
        link(file, target / f"{prefix}{file.name}")


def link(source: str | Path, target: str | Path) -> None:
    """Give a file a second name, or copy it where the file system knows no links."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def write_named(work: Path, target: Path) -> None:
    """Write by the documents' ids which were dropped and which was kept, in the order of what was dropped."""
    from daft import col

    found = engine.frame(work / "duplicates" / "found")
    documents = engine.frame(work / "clean" / "documents", "doc", "id", "source")
    for name, column in (("dropped", "doc"), ("kept", "kept")):
        told = documents.select(
            col("doc").alias(column), col("id").alias(f"{name}_id"), col("source").alias(f"{name}_source")
        )
        found = found.join(told, on=column)
    columns = [col("dropped_id").alias("dropped"), "dropped_source", col("kept_id").alias("kept"), "kept_source"]
    # A document is dropped once, so this is an order without ties.
    ordered = found.sort("doc").select(*columns, "kind", "jaccard")
    with pq.ParquetWriter(target, NAMED, compression="zstd") as out:
        for rows in _regrouped(batch.cast(NAMED) for batch in ordered.to_arrow_iter()):
            out.write_table(rows)


def _regrouped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Return the same rows in tables of one size, whatever batches an engine makes of them."""
    held = NAMED.empty_table()
    for batch in batches:
        held = pa.concat_tables([held, pa.Table.from_batches([batch])])
        while len(held) >= _NAMED_ROWS:
            yield held.slice(0, _NAMED_ROWS).combine_chunks()
            held = held.slice(_NAMED_ROWS)
    if len(held):
        yield held.combine_chunks()


def _end_with_the_parent() -> None:
    """End this process when the one that started it is gone, so that two never build the same corpus for long."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Read a recipe from standard input, build the corpus, and tell an error as a last line of JSON."""
    _end_with_the_parent()
    task = json.loads(sys.stdin.read())
    code = 0
    try:
        Build(config.fill(CorpusRecipe, task["recipe"]), task["quiet"]).run()
    except Exception as error:
        refusal = error if isinstance(error, HeadstartError) else artifact.explain(error)
        if refusal is None:
            traceback.print_exc()
            refusal = ResourceError(
                f"the engine's process met an error that is ours or its own ({first_line(error)})",
                allowed="What it wrote so far stays",
                do="Report it with the lines above and the recipe; the same command goes on from here",
            )
        print(json.dumps({"error": refusal.to_dict()}), flush=True)
        code = _TOLD
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: Daft's threads may abort while the interpreter winds down, with all work done.
    os._exit(code)


if __name__ == "__main__":
    main()
