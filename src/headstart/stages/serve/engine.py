"""The threads that compute batches."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Sequence

import torch

from headstart.core.log import logger
from headstart.stages.serve.bodies import BatchRow, Slot
from headstart.stages.serve.queue import RowQueue, Waiting
from headstart.stages.serve.refusals import Refusal
from headstart.stages.serve.telemetry import Telemetry

_SMOOTHING = 0.2
_WARM_UP_LENGTHS = (8, 32, 128)


class Engine:
    """Takes batches from a queue and computes them, in one or several threads of its own.

    Short texts make small matrices, which two threads of torch compute hardly faster than one. Two batches at a time,
    with one thread of torch each, use two cores fully.
    """

    def __init__(self, queue: RowQueue, telemetry: Telemetry, parallel: int = 1, torch_threads: int = 0) -> None:
        """Keep the queue; `start` starts the threads.

        Args:
            queue: where the rows wait.
            telemetry: the metrics to update.
            parallel: batches that are computed at the same time.
            torch_threads: threads of torch for each of them; 0 leaves torch's default.
        """
        self.queue, self.telemetry = queue, telemetry
        self.ready = threading.Event()
        """Set after the warm-up."""
        self._torch_threads = torch_threads
        self._threads = [
            threading.Thread(target=self._work, args=(i == 0,), name=f"headstart-engine-{i}", daemon=True)
            for i in range(parallel)
        ]
        self._warm: Sequence[Slot] = ()

    def start(self, slots: Sequence[Slot]) -> None:
        """Start the threads; the first one computes a few rows of these slots before the others begin."""
        self._warm = slots
        for thread in self._threads:
            thread.start()

    @property
    def is_alive(self) -> bool:
        """True while all threads run."""
        return all(thread.is_alive() for thread in self._threads)

    def stop(self, timeout: float) -> bool:
        """Finish the waiting rows and end the threads; False if that took longer than `timeout` seconds."""
        self.queue.close()
        end = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self, is_first: bool) -> None:
        if self._torch_threads:
            # OpenMP keeps the number for each thread that calls it.
            torch.set_num_threads(self._torch_threads)
        if is_first:
            self._warm_up()
            self.ready.set()
        self.ready.wait()
        while True:
            batch = self.queue.take()
            if batch is None:
                return
            if batch:
                self._compute(batch)

    def _warm_up(self) -> None:
        """Compute rows of several lengths on each body: the first pass of a shape is slow."""
        slots = list({id(slot.body): slot for slot in self._warm}.values())
        for slot in slots:
            for length in _WARM_UP_LENGTHS:
                length = min(length, slot.spec.max_length)
                feature = _blank(slot, length)
                slot.body.run([BatchRow(slot, feature, length)] * max(1, min(8, self.queue.budget // length)))

    def _compute(self, batch: Sequence[Waiting]) -> None:
        rows = [job.rows[index] for job, index in batch]
        start = time.perf_counter()
        try:
            outputs = rows[0].slot.body.run(rows)
        except Exception as error:
            # The rows of a batch belong to different clients; what one of them sent must not fail the others.
            if len(batch) > 1:
                for entry in batch:
                    self._compute([entry])
                return
            logger.error("a row could not be computed: %s\n%s", type(error).__name__, traceback.format_exc())
            batch[0][0].fail(Refusal(500, "Internal error while a row was computed, please report it."))
            return
        seconds = time.perf_counter() - start
        if sum(row.length for row in rows) >= self.queue.budget / 2:
            # Small batches are slower per row, and would make an idle server look overloaded.
            rate = len(self._threads) * len(rows) / max(seconds, 1e-9)
            before = self.queue.rows_per_second
            self.queue.rows_per_second = rate if not before else (1 - _SMOOTHING) * before + _SMOOTHING * rate
        self.telemetry.batch(rows, seconds, self.queue.budget)
        for (job, index), output in zip(batch, outputs, strict=True):
            job.add(index, output)


def _blank(slot: Slot, length: int) -> dict[str, object]:
    """Return a feature of padding tokens, in the form that the task collates."""
    ids = [slot.spec.pad] * length
    match slot.facts["kind"]:
        case "embed":
            return {"input_ids": [ids], "example": 0}
        case "tag":
            return {"input_ids": ids, "labels": [-100] * length, "word_mask": [1] * length}
    return {"input_ids": ids, "labels": 0}
