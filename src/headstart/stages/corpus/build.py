"""The process that builds a corpus step by step. A finished step leaves a marker and is not repeated.

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

from headstart.core import artifact, config, faults, log
from headstart.core.errors import DataError, HeadstartError, ResourceError, first_line
from headstart.core.lock import FolderLock
from headstart.core.log import logger
from headstart.core.recipes import variables
from headstart.corpus.clean.part import PartSettings
from headstart.corpus.datasheet import croissant
from headstart.corpus.datasheet import facts as datasheet
from headstart.corpus.datasheet.inspection import WORK
from headstart.corpus.dedup import contamination, duplicates, lines
from headstart.corpus.dedup.fingerprints import SignatureConfig
from headstart.corpus.parts import engine
from headstart.corpus.parts.files import finished, in_order, size_of
from headstart.corpus.parts.receipt import REJECTS, RowCounts
from headstart.corpus.read import sources
from headstart.corpus.read.batches import REJECT_SCHEMA
from headstart.corpus.select import proportions
from headstart.corpus.select.part import SPLITS, SelectSettings
from headstart.stages.corpus.recipe import CorpusRecipe, inputs_of

DUPLICATE_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("dropped", "dropped_source", "kept", "kept_source", "kind")]
    + [("jaccard", pa.float64())]
)
_DUPLICATE_ROWS = 1 << 16
_FIRST_ROWS = 100
_SECONDS = "seconds.json"
_REPORTED_ERROR = 3
"""The exit code of a process that has reported its error."""
_SKIPPED_NAMES = 5


class Build:
    """Builds one corpus, or resumes it."""

    def __init__(self, recipe: CorpusRecipe) -> None:
        """Find the parts and start the engine."""
        self.recipe = recipe
        self.folder, self.work = recipe.output, recipe.output / WORK
        self.work.mkdir(parents=True, exist_ok=True)
        self.parts = sources.parts_of(recipe.sources, recipe.reading.part_mb)
        self.seconds = self._previous_seconds()
        self.sizes: dict[str, Any] = {}
        engine.start(recipe.engine)

    def run(self) -> None:
        """Run the steps that are not finished."""
        sets = self._once("contamination", self._contamination)
        cleaned = self._tasks(
            "clean", "headstart.corpus.clean.part:clean_part", self._cleaning_tasks(), _require_readable
        )
        counts = RowCounts.of_parts(cleaned)
        _log_counts(counts)
        skipped = {source.name: sources.skipped_files(source) for source in self.recipe.sources}
        _log_skipped(skipped)
        first = next((note["first_reject"] for note in cleaned if note["first_reject"]), "")
        counts.require_few_rejects("read", self.recipe.max_reject_share, first, self.folder)
        self.sizes["duplicates"] = self._once("duplicates", self._duplicates)
        self.sizes["lines"] = self._once("lines", self._lines)
        rates = self._once("rates", self._rates)
        selected = self._tasks("select", "headstart.corpus.select.part:select_part", self._selection_tasks(rates))
        selection_counts = RowCounts.of_parts(selected)
        _log_counts(selection_counts)
        counts.add(selection_counts)
        counts.check()
        if not sum(note["splits"].get("train", 0) for note in selected):
            raise DataError(
                f"no document to train on is left of {counts['read'].rows_in:,} rows",
                allowed="A corpus needs at least one document",
                do=f"`headstart corpus explain {self.folder}` shows what each rule dropped",
            )
        shards = self._timed("shards", lambda: self._shards(selected))
        self._publish(
            datasheet.BuildRecord(
                self.recipe.sources, sources.identities(self.recipe.sources), skipped, counts, cleaned, selected, sets,
                shards,
            )
        )  # fmt: skip

    def _contamination(self) -> list[dict[str, Any]]:
        if self.recipe.contamination is None:
            return []
        return list(contamination.write_table(self.recipe.contamination, self.work / "evaluation.parquet"))

    def _cleaning_tasks(self) -> list[dict[str, Any]]:
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

    def _without_duplicates(self, kind: str, *columns: str) -> Any:
        """Return a frame over the tables of one kind of all parts, without the duplicates."""
        duplicated = engine.frame(self.work / "duplicates" / "found", "doc")
        return engine.frame(self.work / "clean" / kind, "doc", *columns).join(duplicated, on="doc", how="anti")

    def _lines(self) -> dict[str, Any]:
        if self.recipe.lines is None:
            return {}
        shutil.rmtree(self.work / "lines", ignore_errors=True)
        repeated = lines.repeated(self._without_duplicates("lines", "line"), self.recipe.lines.documents)
        repeated.write_parquet(str(self.work / "lines"), compression="zstd")
        return {**size_of(self.work / "clean" / "lines"), "repeated": len(lines.load(self.work / "lines"))}

    def _rates(self) -> dict[str, float]:
        """Return the fraction to keep of each source and language; empty if everything is kept."""
        from daft import col

        weights = {source.name: source.weight for source in self.recipe.sources}
        if self.recipe.mixture.exponent is None and (len(weights) == 1 or None in weights.values()):
            return {}
        documents = self._without_duplicates("fingerprints", "source", "language", "characters")
        sums = documents.groupby("source", "language").agg(col("characters").sum()).to_pydict()
        groups = zip(sums["source"], [language or "" for language in sums["language"]], strict=True)
        sizes = dict(zip(groups, sums["characters"], strict=True))
        rates = proportions.rates(sizes, weights, self.recipe.mixture.exponent)
        return {f"{source}/{language or None}": rate for (source, language), rate in sorted(rates.items())}

    def _selection_tasks(self, rates: dict[str, float]) -> list[dict[str, Any]]:
        settings = SelectSettings(
            folder=self.work, lines=self.recipe.lines, rates=rates, validation=self.recipe.validation,
            seed=self.recipe.seed,
        ).model_dump_json()  # fmt: skip
        return [{"part": part.number, "number": part.number, "settings": settings} for part in self.parts]

    def _shards(self, selected: Sequence[dict[str, Any]]) -> dict[str, Any]:
        if self.recipe.tokenizer is None:
            return {}
        # Imported here because transformers takes seconds to import, and most corpora are not encoded.
        from headstart.stages.corpus import shards as corpus_shards

        return corpus_shards.write(self.recipe, self.work, selected, self._tasks)

    def _publish(self, record: datasheet.BuildRecord) -> None:
        """Gather the facts, write the datasheet and publish the corpus."""
        facts = variables.written(datasheet.gather(record, self.work, config.to_saved(self.recipe)))
        megabytes = sum(note["bytes"] for note in record.cleaned) / 1e6
        cost = {
            "seconds": self.seconds,
            "steps": _speeds(record.cleaned, megabytes),
            "megabytes": megabytes,
            "shuffled": self.sizes,
            "engine": config.to_dict(self.recipe.engine),
        }
        with artifact.published(
            self.folder, "corpus", recipe=config.to_saved(self.recipe), seed=self.recipe.seed, facts=facts, cost=cost,
        ) as staging:  # fmt: skip
            self._link(staging.path)
            datasheet.write(facts, staging.path, staging.path)
            staging.facts["croissant"] = {"conforms_to": croissant.CONFORMS_TO}
        shutil.rmtree(self.work, ignore_errors=True)

    def _link(self, staging: Path) -> None:
        """Hard-link documents, dropped rows, rejects and shards into the artifact, so that a crash loses nothing."""
        for split in SPLITS:
            _link_tables(self.work / "select" / split, staging / "documents" / split)
        _link_tables(self.work / "clean" / "dropped", staging / "dropped")
        # Rows that selection dropped are listed after those that cleaning dropped.
        _link_tables(self.work / "select" / "dropped", staging / "dropped", "selected-")
        with pq.ParquetWriter(staging / "rejects.parquet", REJECT_SCHEMA, compression="zstd") as out:
            for file in in_order(self.work / "clean" / "rejects"):
                out.write_table(pq.read_table(file))
        write_duplicates(self.work, staging / "duplicates.parquet")
        if (self.work / "shards" / "done").is_dir():
            shutil.copytree(self.work / "shards" / "done", staging / "shards", copy_function=link)
            shutil.copytree(self.work / "shards" / "tokenizer", staging / "tokenizer", copy_function=link)

    def _tasks(
        self, step: str, function: str, tasks: Sequence[dict[str, Any]],
        check: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Run the unfinished ones of some tasks, check each result, and return the notes of all tasks in order."""
        folder = self.work / step
        folder.mkdir(parents=True, exist_ok=True)
        remaining = [task for task in tasks if finished(folder, task["number"]) is None]
        if remaining:
            done = len(tasks) - len(remaining)
            started = time.monotonic()
            for note_of_task in engine.run_tasks(function, remaining, self.recipe.engine):
                done += 1
                check(note_of_task)
                if _is_milestone(done, len(tasks)):
                    logger.info(f"corpus: {step}: part {done} of {len(tasks)}")
                started = self._add_seconds(step, started)
        return [note for task in tasks if (note := finished(folder, task["number"])) is not None]

    def _once(self, step: str, work: Callable[[], Any]) -> Any:
        """Run a step that has no parts, unless its marker exists, and return its note."""
        marker = self.work / f"{step}.json"
        if not marker.is_file():
            note = self._timed(step, work)
            artifact.write_whole(marker, json.dumps(note) + "\n")
        return json.loads(marker.read_text(encoding="utf-8"))

    def _timed(self, step: str, work: Callable[[], Any]) -> Any:
        started = time.monotonic()
        result = work()
        self._add_seconds(step, started)
        return result

    def _previous_seconds(self) -> dict[str, float]:
        """Return the seconds that earlier processes spent on each step of this corpus."""
        try:
            seconds: dict[str, float] = json.loads((self.work / _SECONDS).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return seconds

    def _add_seconds(self, step: str, since: float) -> float:
        """Add the seconds since a moment to those of a step, save them for a resumed build, and return the time now."""
        now = time.monotonic()
        self.seconds[step] = round(self.seconds.get(step, 0.0) + now - since, 3)
        artifact.write_whole(self.work / _SECONDS, json.dumps(self.seconds) + "\n")
        return now


def _is_milestone(done: int, total: int) -> bool:
    """Return whether this part completes another tenth of all parts: a folder of pages has a part for each file."""
    return 10 * done // total > 10 * (done - 1) // total


def _log_counts(counts: RowCounts) -> None:
    counts.check()
    for line in counts.lines():
        logger.info(f"corpus: {line}")


def _log_skipped(skipped: Mapping[str, list[str]]) -> None:
    """Log the files beside the sources that are not read, which may be due to a typing error."""
    for source, names in skipped.items():
        if names:
            more = f" and {len(names) - _SKIPPED_NAMES:,} more" if len(names) > _SKIPPED_NAMES else ""
            logger.info(f"corpus: {source}: not read: {', '.join(names[:_SKIPPED_NAMES])}{more}")


def _require_same_inputs(recipe: CorpusRecipe, inputs: Mapping[str, str]) -> None:
    """Raise if the files, which this process lists again, are not those that the folder was opened for."""
    if inputs_of(recipe) != inputs:
        raise DataError(
            "files of the corpus were changed while the build started",
            allowed="A build reads the same files from start to end",
            do="Run the same command again",
        )


def _require_readable(note: Mapping[str, Any]) -> None:
    """Raise at the first part of which nothing can be read: then the recipe is probably wrong, not the files."""
    read = RowCounts.from_json(note["books"])["read"]
    if read.rows_in >= _FIRST_ROWS and read.dropped[REJECTS] == read.rows_in:
        raise DataError(
            f"none of the first {read.rows_in:,} rows of a file of source {note['source']!r} can be read; "
            f"the first is {note['first_reject']}",
            do="Check the source's files, format and columns in the recipe",
        )


def _speeds(cleaned: Sequence[Mapping[str, Any]], megabytes: float) -> dict[str, dict[str, float]]:
    """Return the seconds of each cleaning step over all workers, and the megabytes per second of one worker."""
    seconds: Counter[str] = Counter()
    for note in cleaned:
        seconds.update(note["seconds"])
    return {
        name: {"seconds": round(value, 2), "mb_per_second": round(megabytes / value, 1) if value else 0.0}
        for name, value in seconds.items()
    }


def _link_tables(source: Path, target: Path, prefix: str = "") -> None:
    target.mkdir(parents=True, exist_ok=True)
    for file in in_order(source):
        link(file, target / f"{prefix}{file.name}")


def link(source: str | Path, target: str | Path) -> None:
    """Hard-link a file, or copy it if the file system has no hard links."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def write_duplicates(work: Path, target: Path) -> None:
    """Write the ids of each dropped duplicate and of the document kept in its place, in the order of the dropped."""
    from daft import col

    pairs = engine.frame(work / "duplicates" / "found")
    documents = engine.frame(work / "clean" / "documents", "doc", "id", "source")
    for name, column in (("dropped", "doc"), ("kept", "kept")):
        ids = documents.select(
            col("doc").alias(column), col("id").alias(f"{name}_id"), col("source").alias(f"{name}_source")
        )
        pairs = pairs.join(ids, on=column)
    columns = [col("dropped_id").alias("dropped"), "dropped_source", col("kept_id").alias("kept"), "kept_source"]
    # A document is dropped once, so the order has no ties.
    ordered = pairs.sort("doc").select(*columns, "kind", "jaccard")
    with pq.ParquetWriter(target, DUPLICATE_SCHEMA, compression="zstd") as out:
        for rows in _regrouped(batch.cast(DUPLICATE_SCHEMA) for batch in ordered.to_arrow_iter()):
            out.write_table(rows)


def _regrouped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the same rows in tables of one size, independent of the engine's batches."""
    rows = DUPLICATE_SCHEMA.empty_table()
    for batch in batches:
        rows = pa.concat_tables([rows, pa.Table.from_batches([batch])])
        while len(rows) >= _DUPLICATE_ROWS:
            yield rows.slice(0, _DUPLICATE_ROWS).combine_chunks()
            rows = rows.slice(_DUPLICATE_ROWS)
    if len(rows):
        yield rows.combine_chunks()


def _exit_with_parent() -> None:
    """Exit when the parent process is gone, so that the next one need not wait long for the lock."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Read a recipe from standard input, build the corpus, and report an error as a last line of JSON."""
    _exit_with_parent()
    task = json.loads(sys.stdin.read())
    log.show(task["quiet"])
    code = 0
    try:
        recipe = config.fill(CorpusRecipe, variables.from_json(task["recipe"], task["variables"]))
        # The parent's lock is gone when the parent was killed, but its engine may still be writing for a moment.
        with FolderLock(recipe.output / WORK, wait=True):
            if not artifact.is_complete(recipe.output):
                _require_same_inputs(recipe, task["inputs"])
                Build(recipe).run()
    except Exception as error:
        reported = faults.explain(error) or (error if isinstance(error, HeadstartError) else None)
        if reported is None:
            traceback.print_exc()
            reported = ResourceError(
                f"internal error in the engine's process ({first_line(error)})",
                allowed="The finished parts are kept",
                do="Please report it with the lines above and the recipe; the same command resumes the build",
            )
        print(json.dumps({"error": reported.to_dict()}), flush=True)
        code = _REPORTED_ERROR
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: Daft's threads may abort while the interpreter shuts down, after all work is done.
    os._exit(code)


if __name__ == "__main__":
    main()
