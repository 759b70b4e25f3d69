"""One request through the server: admitted, tokenized, computed, or refused with the reason."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from headstart.stages.runs.token_batches import batch_tokens
from headstart.stages.serve import answers
from headstart.stages.serve.bodies import BatchRow, Slot
from headstart.stages.serve.catalog import Catalog
from headstart.stages.serve.engine import Engine
from headstart.stages.serve.indexes import Indexes, OpenIndex
from headstart.stages.serve.queue import Job, RowQueue
from headstart.stages.serve.refusals import Refusal
from headstart.stages.serve.settings import ServeSettings
from headstart.stages.serve.telemetry import Telemetry
from headstart.training import precision

_PATIENCE = 0.6
"""The share of the deadline that the queue may be expected to take. Rows of unusual length wait longer than others, so
that a queue of the whole deadline would let some of them pass it."""
_PARALLEL_BATCHES = 4
"""More batches at a time would mostly wait for Python's interpreter lock; `--workers` has more processes."""
Gone = Callable[[], Awaitable[Any]]
"""Returns when the client has left."""


class ClientGone(Exception):
    """The client left before its request was answered."""


@dataclass(frozen=True)
class Computed:
    """The outputs of a request, and the version of the task that computed all of them."""

    slot: Slot
    rows: Sequence[BatchRow]
    outputs: Sequence[Any]

    @property
    def tokens(self) -> int:
        """The tokens of the rows, without padding."""
        return sum(row.length for row in self.rows)

    @property
    def model_hash(self) -> str:
        """The content hash of the folder that answered."""
        return f"sha256:{self.slot.hash}"


class Service:
    """Everything between the routes and the bodies."""

    def __init__(
        self, catalog: Catalog, settings: ServeSettings, telemetry: Telemetry, indexes: Indexes | None = None
    ) -> None:
        """Create the queue, the engine and the threads that tokenize, load and search."""
        self.catalog, self.settings, self.telemetry = catalog, settings, telemetry
        self.indexes = indexes or Indexes()
        budget = settings.batch_tokens or batch_tokens(precision.default_device())
        patience = _PATIENCE * settings.deadline_seconds
        self.queue = RowQueue(settings.queue_rows, budget, settings.window_ms / 1000, patience)
        self.engine = _engine(self.queue, telemetry, settings.parallel_batches)
        self.draining = False
        self.finished = False
        """Set by `stop` if all accepted requests were answered."""
        # One thread each: a tokenizer keeps the truncation of its last call, and loading must not wait for tokenizing.
        self._tokenizing = ThreadPoolExecutor(1, "headstart-tokenize")
        self._loading = ThreadPoolExecutor(1, "headstart-load")
        self._searching = ThreadPoolExecutor(1, "headstart-search")

    @property
    def is_ready(self) -> bool:
        """True after the warm-up, until the server shuts down."""
        return self.engine.ready.is_set() and not self.draining

    def measure(self) -> bytes:
        """Return the metrics as text."""
        self.telemetry.waiting.set(len(self.queue))
        self.telemetry.dropped.set(self.queue.dropped)
        return self.telemetry.render()

    async def compute(self, name: str, inputs: Sequence[Any], gone: Gone) -> Computed:
        """Compute inputs, which were checked, with the current version of a task.

        Raises:
            Refusal: the queue is full, the deadline passed, or the task cannot be loaded.
            ClientGone: the client left; what was still waiting is dropped.
        """
        deadline = time.monotonic() + self.settings.deadline_seconds
        loop = asyncio.get_running_loop()
        with self.queue.reserved(len(inputs)):
            slot = self.catalog.resident(name)
            if slot is None:
                slot = await loop.run_in_executor(self._loading, self.catalog.load, name)
            rows = await loop.run_in_executor(self._tokenizing, answers.encode, slot, inputs)
            future: asyncio.Future[list[Any]] = loop.create_future()
            job = Job(rows, deadline, lambda result: loop.call_soon_threadsafe(_settle, future, result))
            self.queue.add(job)
            try:
                return Computed(slot, rows, await self._wait(future, deadline, gone))
            finally:
                job.abandoned.set()

    async def search(self, index: OpenIndex, query: str, count: int, gone: Gone) -> list[dict[str, Any]]:
        """Return the passages of an index that are nearest to a query, which was checked; raises as `compute` does."""
        deadline = time.monotonic() + self.settings.deadline_seconds
        with self.queue.reserved(1):
            loop = asyncio.get_running_loop()
            answer = loop.run_in_executor(self._searching, index.searcher.ask, query, count)
            passages: list[dict[str, Any]] = (await self._wait(answer, deadline, gone))["passages"]
            return passages

    async def _wait(self, future: asyncio.Future[Any], deadline: float, gone: Gone) -> Any:
        """Return the result of a future, unless the client leaves or the deadline passes before."""
        leaving = asyncio.ensure_future(gone())
        try:
            wait = max(0.0, deadline - time.monotonic())
            await asyncio.wait({future, leaving}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            if future.done():
                return future.result()
            if leaving.done():
                raise ClientGone
            raise Refusal(504, f"The request was not answered within {self.settings.deadline_seconds:g} s.", 1)
        finally:
            leaving.cancel()
            future.cancel()

    def start(self) -> None:
        """Load tasks until the cache is full and start to compute; the warm-up runs in the engine's thread."""
        self.engine.start(self.catalog.fill())

    def stop(self) -> None:
        """Finish what was accepted, within `drain_seconds`."""
        self.draining = True
        self.finished = self.engine.stop(self.settings.drain_seconds)
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
        self._loading.shutdown(wait=False, cancel_futures=True)
        self._searching.shutdown(wait=False, cancel_futures=True)


def _engine(queue: RowQueue, telemetry: Telemetry, parallel: int | None) -> Engine:
    """Return an engine whose batches share the threads of torch; on a GPU, they would only wait for each other."""
    if precision.default_device().type != "cpu":
        return Engine(queue, telemetry, parallel or 1)
    threads = torch.get_num_threads()
    parallel = parallel or min(_PARALLEL_BATCHES, threads)
    return Engine(queue, telemetry, parallel, max(1, threads // parallel))


def _settle(future: asyncio.Future[list[Any]], result: list[Any] | Exception) -> None:
    """Set the result of a future, unless nobody waits for it any more."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
