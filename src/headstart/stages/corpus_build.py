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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.core import artifact, config
from headstart.core.errors import DataError, HeadstartError
from headstart.corpus import contamination, datasheet, duplicates, engine, lines, proportions, sources
from headstart.corpus.batches import REJECTS
from headstart.corpus.cleaning import PartSettings
from headstart.corpus.fingerprints import SignatureConfig
from headstart.corpus.parts import finished, size_of
from headstart.corpus.receipt import Books
from headstart.corpus.selection import SPLITS, SelectSettings
from headstart.stages.corpus import WORK, CorpusRecipe

_TOLD = 3


class Build:
    """One corpus on its way."""

    def __init__(self, recipe: CorpusRecipe, quiet: bool) -> None:
        """Find the parts and start the engine."""
        self.recipe, self.quiet = recipe, quiet
        self.folder, self.work = recipe.output, recipe.output / WORK
        self.work.mkdir(parents=True, exist_ok=True)
        self.parts = sources.parts_of(recipe.sources, recipe.reading.part_mb)
        self.seconds: dict[str, float] = {}
        self.sizes: dict[str, Any] = {}
        engine.start(recipe.engine)

    def run(self) -> None:
        """Do what is not done yet."""
        sets = self._once("contamination", self._contamination)
        cleaned = self._tasks("clean", "headstart.corpus.cleaning:clean_part", self._cleaning())
        books = _booked(cleaned)
        self._say_books(books)
        first = next((note["first_reject"] for note in cleaned if note["first_reject"]), "")
        books.require_few_rejects("read", self.recipe.max_reject_share, first)
        self.sizes["duplicates"] = self._once("duplicates", self._duplicates)
        self.sizes["lines"] = self._once("lines", self._lines)
        rates = self._once("rates", self._rates)
        selected = self._tasks("select", "headstart.corpus.selection:select_part", self._selecting(rates))
        chosen = _booked(selected)
        self._say_books(chosen)
        books.add(chosen)
        books.check()
        if not sum(note["splits"].get("train", 0) for note in selected):
            raise DataError(
                f"nothing is left of {books['read'].rows_in:,} rows",
                allowed="A corpus holds one document or more",
                do="`headstart corpus RECIPE --explain 5` shows which rules dropped them",
            )
        shards = self._timed("shards", lambda: self._shards(selected))
        self._publish(books, cleaned, selected, sets, shards)

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
        sizes = duplicates.find(self.work / "clean", target, self.recipe.duplicates)
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
        from headstart.stages import corpus_shards

        return corpus_shards.write(self.recipe, self.work, selected, self._tasks)

    def _publish(
        self, books: Books, cleaned: Sequence[dict[str, Any]], selected: Sequence[dict[str, Any]],
        sets: Sequence[dict[str, Any]], shards: dict[str, Any],
    ) -> None:  # fmt: skip
        facts = datasheet.gather(
            title=self.recipe.title, answers=self.recipe.answers, sources=self.recipe.sources,
            identities=sources.identities(self.recipe.sources), books=books, cleaned=cleaned, selected=selected,
            sets=sets, work=self.work, shards=shards, recipe=config.to_dict(self.recipe),
        )  # fmt: skip
        megabytes = books["read"].characters_in / 1e6
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
            datasheet.write(facts, staging)
            written["conforms_to"] = "http://mlcommons.org/croissant/1.0"
        shutil.rmtree(self.work, ignore_errors=True)

    def _link(self, staging: Path) -> None:
        """Bring documents, drops, rejects and shards into the artifact; links, so that a crash loses nothing."""
        for split in SPLITS:
            _linked(self.work / "select" / split, staging / "documents" / split)
        _linked(self.work / "clean" / "dropped", staging / "dropped")
        rejects = sorted((self.work / "clean" / "rejects").glob("part-*.parquet"))
        with pq.ParquetWriter(staging / "rejects.parquet", REJECTS, compression="zstd") as out:
            for file in rejects:
                out.write_table(pq.read_table(file))
        found = pq.read_table(self.work / "duplicates" / "found").sort_by("doc")
        pq.write_table(_named(found, self.work), staging / "duplicates.parquet", compression="zstd")
        if (self.work / "shards" / "done").is_dir():
            shutil.copytree(self.work / "shards" / "done", staging / "shards", copy_function=os.link)
            shutil.copytree(self.work / "shards" / "tokenizer", staging / "tokenizer", copy_function=os.link)

    def _tasks(self, step: str, function: str, tasks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Run what is not finished of some tasks, and return the notes of all, in their order."""
        folder = self.work / step
        folder.mkdir(parents=True, exist_ok=True)
        left = [task for task in tasks if finished(folder, task["number"]) is None]
        if left:
            done = len(tasks) - len(left)
            started = time.monotonic()
            for _ in engine.run_tasks(function, left, self.recipe.engine):
                done += 1
                self._say(f"{step}: part {done} of {len(tasks)}")
            self.seconds[step] = round(time.monotonic() - started, 3)
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
        self.seconds[step] = round(time.monotonic() - started, 3)
        return found

    def _say_books(self, books: Books) -> None:
        books.check()
        for line in books.lines():
            self._say(line)

    def _say(self, line: str) -> None:
        if not self.quiet:
            print(f"corpus: {line}", file=sys.stderr, flush=True)


def _booked(notes: Sequence[dict[str, Any]]) -> Books:
    books = Books()
    for note in notes:
        books.add(Books.from_json(note["books"]))
    return books


def _rates_of(cleaned: Sequence[dict[str, Any]], megabytes: float) -> dict[str, dict[str, float]]:
    """Return the seconds of each cleaning step over all workers, and megabytes a second of one."""
    seconds: Counter[str] = Counter()
    for note in cleaned:
        seconds.update(note["seconds"])
    return {
        name: {"seconds": round(value, 2), "mb_per_second": round(megabytes / value, 1) if value else 0.0}
        for name, value in seconds.items()
    }


def _linked(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for file in sorted(source.glob("part-*.parquet")):
        os.link(file, target / file.name)


def _named(found: pa.Table, work: Path) -> pa.Table:
    """Say of duplicates by the documents' ids which were dropped and which was kept."""
    needed = pa.chunked_array([pa.chunked_array([found["doc"], found["kept"]]).unique()])
    known: dict[int, tuple[str, str]] = {}
    for file in _parts_with(needed, work):
        held = pq.read_table(file, columns=["doc", "id", "source"], filters=[("doc", "in", needed.to_pylist())])
        known |= {row["doc"]: (row["id"], row["source"]) for row in held.to_pylist()}
    columns: dict[str, Any] = {}
    for name, column in (("dropped", "doc"), ("kept", "kept")):
        columns[name] = [known[doc][0] for doc in found[column].to_pylist()]
        columns[f"{name}_source"] = [known[doc][1] for doc in found[column].to_pylist()]
    return pa.table({**columns, "kind": found["kind"], "jaccard": found["jaccard"]})


def _parts_with(docs: pa.ChunkedArray, work: Path) -> Iterator[Path]:
    for number in sorted({doc >> 32 for doc in docs.to_pylist()}):
        yield work / "clean" / "documents" / f"part-{number:05d}.parquet"


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
    except HeadstartError as error:
        told = {"kind": type(error).__name__, "found": error.found, "allowed": error.allowed, "do": error.do}
        print(json.dumps({"error": told}), flush=True)
        code = _TOLD
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: Daft's threads may abort while the interpreter winds down, with all work done.
    os._exit(code)


if __name__ == "__main__":
    main()
