"""Predict every row of a file with a fine-tuned model, and write a file with the same rows in the same order.

The file is read in chunks of rows. Each chunk is computed on its own, in this process or another, and saved as a part
file beside the output. At the end the parts are joined. A killed run resumes with the chunks that are missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from headstart.checkpoint.names import run_folder_of
from headstart.core import artifact
from headstart.core.contracts import Task
from headstart.core.errors import ArtifactError, DataError
from headstart.core.lock import FolderLock
from headstart.core.log import logger
from headstart.core.processes import Executor, cores
from headstart.stages.finetune.finished import Finetuned
from headstart.stages.predict import output
from headstart.stages.predict.compute import PREDICTION, Scores, columns_of
from headstart.stages.predict.executors import build_executor
from headstart.stages.predict.inputs import TaskInputs, expected_columns, inputs_of, problem_of
from headstart.stages.predict.output import OutputFormat, output_format
from headstart.stages.predict.parts import Parts, Receipt
from headstart.stages.predict.progress import RowProgress
from headstart.stages.predict.settings import PredictSettings
from headstart.stages.runs import manifest
from headstart.stages.runs.manifest import FinetuneManifest
from headstart.stages.runs.token_batches import batch_tokens
from headstart.tasks import tables
from headstart.tasks.table_files import TableFiles, TableSource, locate
from headstart.tasks.table_rows import Row, Survey, read_rows, survey
from headstart.tasks.tables import TableFormat
from headstart.training import precision

ERROR = "error"
_FORMAT = 1
_PROCESS_BYTES = 600_000_000
"""Memory of a process besides the model: the libraries and the tensors of a batch."""


@dataclass(frozen=True)
class Work:
    """Everything that the chunks of one run share."""

    model: Finetuned
    identity: str
    """The identity of the model's files."""
    data: TableFiles
    forms: Sequence[TableFormat]
    survey: Survey
    inputs: TaskInputs
    settings: PredictSettings

    @property
    def task(self) -> Task:
        """The task of the model."""
        return self.model.task

    def chunks(self) -> Iterator[tuple[int, list[Row]]]:
        """Yield the chunks of the rows with their numbers."""
        rows = read_rows(self.data, self.forms)
        number = 0
        while chunk := list(islice(rows, self.settings.chunk_rows)):
            yield number, chunk
            number += 1

    def job(self, rows: list[Row]) -> dict[str, Any]:
        """Return the job that predicts rows."""
        columns = {c.name: [row.values[c.name] for row in rows] for c in self.inputs.columns}
        return {
            "folder": str(self.model.folder.resolve()), "identity": self.identity, "columns": columns,
            "as_vectors": self.inputs.as_vectors, "top_k": self.settings.top_k, "scores": self.settings.scores,
        }  # fmt: skip


def run(model: Path, data: TableSource, to: Path, settings: PredictSettings, quiet: bool = False) -> dict[str, Any]:
    """Predict the rows of a file, several files or a data set; return what was done: counts, problems and speed.

    The model is the output folder of `headstart finetune`, or the name of one.
    """
    suffix = output.require_suffix(to)
    located = locate(data)
    if to.resolve() in [path.resolve() for path in located.files]:
        raise DataError(f"the output {to} is also the input", do="Choose another output")
    work = _open(run_folder_of(model), located, settings)
    scores = Scores(work.task, settings.top_k, settings.scores, work.inputs.as_vectors)
    added = [*scores.names, ERROR]
    kept = pa.schema([]) if settings.only_predictions else work.survey.schema
    _require_free_names(located, kept.names, added)
    form = output_format(suffix, kept, added, work.inputs.as_vectors)
    parts = Parts(to)
    identity = _identity(work, suffix)
    was_joined = parts.belongs_to(identity) and parts.is_joined()
    if to.exists() and not was_joined and not settings.overwrite:
        raise ArtifactError(f"{to} exists already", do="Choose another output, or pass --overwrite, which replaces it")
    with FolderLock(parts.folder):
        if was_joined:
            total = sum(parts.finished().values(), Receipt())
            parts.remove()
            return _result(to, total, 0.0)
        parts.open(identity)
        total, speed = _run_chunks(work, added, form, parts, quiet)
        parts.join(-(-total.rows // settings.chunk_rows), form)
    return _result(to, total, speed)


def summary(result: dict[str, Any]) -> str:
    """Return what a run did, in words."""
    lines = [f"{result['output']}: {result['rows']:,} rows, {result['predicted']:,} with a prediction"]
    if result["rows_per_second"]:
        lines[0] += f", {result['rows_per_second']:,.0f} rows/s"
    if result["failed"]:
        lines.append(f"{result['failed']:,} rows have no prediction; the column `{ERROR}` says why:")
        lines += [f"  row {row:,}: {text}" for row, text in result["problems"]]
        if result["failed"] > len(result["problems"]):
            lines.append(f"  … and {result['failed'] - len(result['problems']):,} more")
    return "\n".join(lines)


def _open(model: Path, data: TableFiles, settings: PredictSettings) -> Work:
    """Verify the model and look at the files."""
    facts = manifest.read_any(model)
    if not isinstance(facts, FinetuneManifest):
        raise ArtifactError(f"{model} is a {facts.KIND}", allowed="Predictions need an output of `headstart finetune`")
    finetuned = Finetuned(model, facts)
    forms = [tables.recognize(path, expected_columns(finetuned.task)) for path in data.files]
    for path, form in zip(data.files, forms, strict=True):
        if not form.is_expected:
            logger.info("%s is read as %s", path, form)
    found = survey(data, forms)
    names = found.schema.names
    inputs = inputs_of(finetuned.task, names, data) if found.rows or names else TaskInputs(())
    return Work(finetuned, artifact.identity(model), data, forms, found, inputs, settings)


def _run_chunks(work: Work, added: list[str], form: OutputFormat, parts: Parts, quiet: bool) -> tuple[Receipt, float]:
    """Compute and save the missing chunks; return the sum of all receipts, and the rows per second."""
    finished = parts.finished()
    todo = -(-work.survey.rows // work.settings.chunk_rows) - len(finished)
    if finished and todo:
        logger.info("%s is resumed: %s chunks are finished, %s are missing", parts.output, len(finished), todo)
    done = sum(receipt.rows for receipt in finished.values())
    executor: Executor[int] | None = build_executor(work.settings, _processes(work, todo)) if todo else None
    progress = RowProgress(work.survey.rows, done, quiet)
    try:
        if executor is not None:
            for number, receipt in _computed(work, added, form, parts, executor, set(finished)):
                finished[number] = receipt
                progress.add(receipt.rows)
    finally:
        progress.close()
        if executor is not None:
            executor.close()
    ordered = (finished[number] for number in sorted(finished))
    return sum(ordered, Receipt()), progress.rows_per_second() if todo else 0.0


def _computed(
    work: Work, added: list[str], form: OutputFormat, parts: Parts, executor: Executor[int], skipped: set[int]
) -> Iterator[tuple[int, Receipt]]:
    """Yield the receipts of the missing chunks as they are saved; at most `capacity` chunks are in memory."""
    chunks = ((number, rows) for number, rows in work.chunks() if number not in skipped)
    pending: dict[int, tuple[list[Row], list[str]]] = {}

    def save(number: int, columns: dict[str, list[Any]]) -> tuple[int, Receipt]:
        rows, problems = pending.pop(number)
        first = number * work.settings.chunk_rows + 1
        named = [(first + i, problem) for i, problem in enumerate(problems) if problem]
        values = _merged(rows, problems, columns, added, work.settings.only_predictions)
        return number, parts.save(number, values, Receipt(len(rows), len(named), named), form)

    is_read = False
    while pending or not is_read:
        while not is_read and len(pending) < executor.capacity:
            number, rows = next(chunks, (-1, []))
            is_read = number < 0
            if is_read:
                break
            problems = [problem_of(row, work.inputs.columns) for row in rows]
            complete = [row for row, problem in zip(rows, problems, strict=True) if not problem]
            pending[number] = rows, problems
            if complete:
                executor.submit(number, json.dumps(work.job(complete)))
            else:
                yield save(number, {})
        if pending:
            for number, answer in executor.wait():
                yield save(number, columns_of(answer))


def _merged(
    rows: list[Row], problems: list[str], columns: dict[str, list[Any]], added: list[str], only_predictions: bool
) -> list[dict[str, Any]]:
    """Return the rows of the output: the input's values, the predictions, and the problems of the other rows."""
    predicted = iter(range(len(columns.get(PREDICTION, ()))))
    merged: list[dict[str, Any]] = []
    for row, problem in zip(rows, problems, strict=True):
        values = {} if only_predictions else dict(row.values)
        i = None if problem else next(predicted)
        values |= {name: None if i is None or name == ERROR else columns[name][i] for name in added}
        values[ERROR] = problem or None
        merged.append(values)
    return merged


def _processes(work: Work, chunks: int) -> int:
    """Return the number of processes: the setting, or as many as there are cores and room for in memory.

    A process takes seconds to start, so by default each has at least two chunks to compute.
    """
    settings = work.settings
    if settings.processes is not None:
        return min(settings.processes, chunks)
    if precision.default_device().type != "cpu":
        return 1
    weights = sum(path.stat().st_size for path in work.model.folder.rglob("*.safetensors"))
    room = int(psutil.virtual_memory().available * 0.8 // (2 * weights + _PROCESS_BYTES))
    return max(1, min(cores(), chunks // 2, room))


def _identity(work: Work, suffix: str) -> dict[str, Any]:
    """Return what the chunks depend on, besides the number of processes, which changes nothing."""
    device = precision.default_device()
    settings = work.settings.model_dump(include={"top_k", "scores", "only_predictions", "chunk_rows"})
    return {
        "format": _FORMAT, "model": work.identity, "data": work.data.sha256(),
        "read_as": ", ".join(dict.fromkeys(map(str, work.forms))),
        "settings": settings, "suffix": suffix, "device": device.type, "batch_tokens": batch_tokens(device),
        "precision": precision.resolve(work.model.recipe.training.precision, device),
        "versions": artifact.versions(),
    }  # fmt: skip


def _require_free_names(data: TableFiles, kept: list[str], added: list[str]) -> None:
    taken = next((name for name in added if name in kept), None)
    if taken is not None:
        raise DataError(
            f"{data} has a column {taken!r}, which is also the name of a column of the predictions",
            do="Rename the column, or pass --only-predictions",
        )


def _result(to: Path, total: Receipt, speed: float) -> dict[str, Any]:
    return {
        "output": str(to), "rows": total.rows, "predicted": total.rows - total.failed, "failed": total.failed,
        "problems": [list(problem) for problem in total.problems], "rows_per_second": speed,
    }  # fmt: skip
