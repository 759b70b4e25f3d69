"""The engine, Daft: expressions on one batch, tasks in processes, frames over files; on one machine or a Ray cluster.

Each part of the corpus is one task. A task reads its part, evaluates the rules as native expressions batch by batch,
and writes its own files. No text passes through the driver, and a finished part is never computed again. Steps that
need all documents at once (duplicates, lines) use frames over the small tables that the tasks wrote.
"""

from __future__ import annotations

import importlib
import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pydantic import Field

from headstart.core import faults, ray_cluster
from headstart.core.config import Section
from headstart.core.errors import HeadstartError, ResourceError, error_from_dict
from headstart.core.extras import install_command
from headstart.core.processes import cores

if TYPE_CHECKING:
    import daft
    from daft import DataFrame, Expression

# Daft sends no telemetry and shows no progress bar: Headstart logs the progress.
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("DAFT_PROGRESS_BAR", "0")

_MIN_OPEN_FILES = 128
"""With fewer, Daft fails without naming the cause: it opens sockets for its workers, and files for its partitions."""


class EngineConfig(Section):
    """Where the corpus is processed."""

    runner: Literal["native", "ray"] = Field("native", description="this machine, or a Ray cluster")
    address: str | None = Field(None, description="address of the Ray cluster; null starts a local one")
    workers: int | None = Field(None, ge=1, description="tasks that run at a time; null for the number of cores")
    partitions: int | None = Field(
        None, ge=1, description="partitions of a shuffle on a cluster; null for the number of workers"
    )


def load() -> Any:
    """Import Daft, or raise an error with the pip command that installs it."""
    try:
        import daft
    except ImportError as error:
        raise ResourceError(
            "cleaning a corpus needs Daft, which is not installed",
            allowed="pretrain reads text files without it",
            do=install_command("corpus"),
        ) from error
    return daft


def start(config: EngineConfig) -> None:
    """Set the runner of this process; call it once."""
    faults.require_open_files(_MIN_OPEN_FILES)
    daft = load()
    if config.runner == "native":
        daft.set_runner_native()
        return
    try:
        ray_cluster.initialize(config.address, workers(config))
    except ImportError as error:
        raise ResourceError(
            "the runner `ray` needs Ray, which is not installed", do=install_command("study")
        ) from error
    daft.set_runner_ray()
    # The default of 200 partitions means 200 tasks: a minute of scheduling for a corpus of a few megabytes.
    daft.set_execution_config(shuffle_aggregation_default_partitions=config.partitions or workers(config))


def workers(config: EngineConfig) -> int:
    """Return the number of tasks that run at a time: the recipe's setting, or one per available core."""
    return cores() if config.workers is None else config.workers


def evaluate(table: pa.Table, expressions: Mapping[str, Expression]) -> pa.Table:
    """Evaluate native expressions over the columns of one batch and return the results as named columns."""
    from daft.expressions import ExpressionsProjection
    from daft.recordbatch import RecordBatch

    batch = RecordBatch.from_arrow_table(table)
    projection = ExpressionsProjection([expression.alias(name) for name, expression in expressions.items()])
    return batch.eval_expression_list(projection).to_arrow_table()


def run_tasks(function: str, tasks: Sequence[Mapping[str, Any]], config: EngineConfig) -> Iterator[dict[str, Any]]:
    """Run "module:function" on each task in worker processes, and yield each result as its task finishes.

    Tasks and results are plain JSON. An error of a task is raised here; a HeadstartError keeps its message.
    """
    daft = load()
    frame = daft.from_pydict({"task": [json.dumps(task) for task in tasks]})
    if config.runner == "ray":
        frame = frame.into_partitions(len(tasks))
        # No actor pool: on a small cluster, its actors and the tasks that feed them wait for each other's cores.
        call = daft.func.batch(return_dtype=daft.DataType.string(), use_process=True, batch_size=1)(_Caller(function))
    else:
        call = _pool(daft, function, min(workers(config), len(tasks)))
    for batch in frame.select(call(daft.col("task")).alias("result")).to_arrow_iter():
        for line in batch.to_pydict()["result"]:
            result = json.loads(line)
            if "error" in result:
                _raise(result["error"])
            yield result["value"]


class _Caller:
    """Calls a function, given by name, on each task of a batch; by name, so that no code is pickled by value."""

    def __init__(self, function: str) -> None:
        self.function = function
        self.__name__ = self.__qualname__ = function.rpartition(":")[2]

    def __call__(self, tasks: Any) -> list[str]:
        return [call(self.function, task) for task in tasks.to_pylist()]


def call(function: str, task: str) -> str:
    """Call "module:function" on a task and return its value or its error as JSON."""
    module, _, name = function.partition(":")
    try:
        return json.dumps({"value": getattr(importlib.import_module(module), name)(json.loads(task))})
    except Exception as error:
        reported = faults.explain(error) or (error if isinstance(error, HeadstartError) else None)
        return json.dumps({"error": reported.to_dict() if reported else {"traceback": traceback.format_exc()}})


def _pool(daft: Any, function: str, count: int) -> Callable[..., Any]:
    class Worker:
        def __init__(self) -> None:
            self.caller = _Caller(function)

        @daft.method.batch(return_dtype=daft.DataType.string(), batch_size=1)  # type: ignore[untyped-decorator]
        def run(self, tasks: daft.Series) -> list[str]:
            return self.caller(tasks)

    pool = daft.cls(Worker, use_process=True, max_concurrency=count)
    return pool().run  # type: ignore[no-any-return]


def _raise(error: Mapping[str, str]) -> None:
    if "traceback" in error:
        raise RuntimeError("a task failed:\n" + error["traceback"])
    raise error_from_dict(error)


def frame(folder: Path, *columns: str) -> DataFrame:
    """Return a lazy frame over the Parquet files of a folder, with all columns or the given ones."""
    table = load().read_parquet(f"{folder}/*.parquet")
    return table.select(*columns) if columns else table
