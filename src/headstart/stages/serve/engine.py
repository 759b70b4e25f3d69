"""The thread that computes batches."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Sequence

from headstart.core.log import logger
from headstart.stages.serve.bodies import BatchRow, Slot
from headstart.stages.serve.queue import RowQueue, Waiting
from headstart.stages.serve.refusals import Refusal
from headstart.stages.serve.telemetry import Telemetry

_SMOOTHING = 0.2
_WARM_UP_LENGTHS = (8, 32, 128)


class Engine:
    """Takes batches from a queue and computes them, one at a time, in a thread of its own."""

    def __init__(self, queue: RowQueue, telemetry: Telemetry) -> None:
        """Keep the queue; `start` starts the thread."""
        self.queue, self.telemetry = queue, telemetry
        self.ready = threading.Event()
        """Set after the warm-up."""
        self._thread = threading.Thread(target=self._work, name="headstart-engine", daemon=True)
        self._warm: Sequence[Slot] = ()

    def start(self, slots: Sequence[Slot]) -> None:
        """Start the thread, which first computes a few rows of these slots."""
        self._warm = slots
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def stop(self, timeout: float) -> bool:
        """Finish the waiting rows and end the thread; False if that took longer than `timeout` seconds."""
        self.queue.close()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        self._warm_up()
        self.ready.set()
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
            rate = len(rows) / max(seconds, 1e-9)
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
