"""Rows that wait for a batch: a bounded queue, from which batches are taken by a token budget."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from headstart.stages.serve.bodies import BatchRow
from headstart.stages.serve.refusals import Refusal

_CANDIDATE_BATCHES = 4
"""The oldest rows, as many as fill this number of batches, are those among which a batch is chosen: enough for similar
lengths, few enough that an unusual length does not wait for the whole queue."""
_PADDED = 1.15
"""The padded size of a batch divided by its tokens, at most. Padding is computed like text; rows of other lengths are
in the next batch."""
_SMALL = 1 / 8
"""The share of the budget below which a batch takes rows of any length: it costs as much as a larger one."""


@dataclass(eq=False)
class Job:
    """The rows of one request. `finish` is called once, from another thread: with the outputs, or with a refusal."""

    rows: Sequence[BatchRow]
    deadline: float
    """The time, by `time.monotonic`, after which no row of the job is computed any more."""
    finish: Callable[[list[Any] | Exception], object]
    abandoned: threading.Event = field(default_factory=threading.Event)
    """Set when the client left: the rows that still wait are dropped."""
    outputs: list[Any] = field(default_factory=list)
    missing: int = 0
    failed: bool = False

    def __post_init__(self) -> None:
        """Prepare the place of each output."""
        self.outputs, self.missing = [None] * len(self.rows), len(self.rows)
        self._counting = threading.Lock()

    def add(self, index: int, output: Any) -> None:
        """Store the output of a row; the last one finishes the job."""
        self.outputs[index] = output
        with self._counting:
            self.missing -= 1
            complete = self.missing == 0 and not self.failed
        if complete:
            self.finish(self.outputs)

    def fail(self, error: Exception) -> None:
        """Finish the job with an error, once."""
        with self._counting:
            first, self.failed = not self.failed, True
        if first:
            self.finish(error)


Waiting = tuple[Job, int]
"""A job and the index of one of its rows."""


class RowQueue:
    """A bounded queue of rows. Requests are added whole or refused at once."""

    def __init__(self, limit: int, budget: int, window: float, patience: float = math.inf) -> None:
        """Set the limits.

        Args:
            limit: rows that may wait or be computed at a time.
            budget: tokens of a batch, padding included.
            window: seconds to wait for more rows when a batch is not full.
            patience: seconds that the rows in the queue may be expected to take; requests beyond that are refused.
        """
        self.limit, self.budget, self.window, self.patience = limit, budget, window, patience
        self._rows: deque[Waiting] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._in_use = 0
        self.rows_per_second = 0.0
        """A moving average over batches that are at least half full, from which waiting times are estimated."""
        self.dropped = 0
        """Rows that were dropped because their client left or their deadline passed."""

    def __len__(self) -> int:
        return len(self._rows)

    @contextmanager
    def reserved(self, rows: int) -> Iterator[None]:
        """Reserve room for the rows of a request until it is answered; raises a refusal at once if there is too little.

        Room is reserved before the texts are tokenized, so that an overloaded server spends nothing on them.
        """
        with self._changed:
            if rows > self.limit:
                raise Refusal(413, f"The request has {rows} inputs; the queue has room for {self.limit}. Send fewer.")
            self._require(rows)
            self._in_use += rows
        try:
            yield
        finally:
            with self._changed:
                self._in_use -= rows

    def require_room(self) -> None:
        """Raise a refusal if there is no room for a single row; `reserved` decides for a whole request."""
        with self._changed:
            self._require(1)

    def _require(self, rows: int) -> None:
        if self._in_use + rows > self.limit or (self._in_use and self._expected(rows) > self.patience):
            message = f"The queue is full ({self._in_use} rows are being answered). Retry later."
            raise Refusal(429, message, self._retry_after())

    def add(self, job: Job) -> None:
        """Add the rows of a job, for which room was reserved; raises a refusal if the queue is closed."""
        with self._changed:
            if self._closed:
                raise Refusal(503, "The server is shutting down. Send the request to another replica.", 1)
            self._rows.extend((job, i) for i in range(len(job.rows)))
            self._changed.notify()

    def take(self) -> list[Waiting] | None:
        """Wait for rows and return those of the next batch; None when the queue is closed and empty."""
        with self._changed:
            while True:
                self._drop()
                if self._rows:
                    break
                if self._closed:
                    return None
                self._changed.wait()
            end = time.monotonic() + self.window
            while not self._closed and self._tokens() < self.budget:
                left = end - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            self._drop()
            return self._choose() if self._rows else []

    def close(self) -> None:
        """Refuse further jobs; those that wait are still taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _choose(self) -> list[Waiting]:
        """Remove and return a batch: the oldest row, and of the rows for the same body those most similar in length.

        The padded size of the batch is at most the budget, unless a single row is larger, and little of it is padding.
        """
        candidates: list[Waiting] = []
        tokens = 0
        for job, index in self._rows:
            tokens += job.rows[index].length
            if candidates and tokens > _CANDIDATE_BATCHES * self.budget:
                break
            candidates.append((job, index))
        first_job, first_index = candidates[0]
        first = first_job.rows[first_index]
        same = [entry for entry in candidates if entry[0].rows[entry[1]].slot.body is first.slot.body]
        same[1:] = sorted(same[1:], key=lambda entry: abs(entry[0].rows[entry[1]].length - first.length))
        batch, longest, tokens = same[:1], first.length, first.length
        for job, index in same[1:]:
            length = job.rows[index].length
            padded = max(longest, length) * (len(batch) + 1)
            if padded > self.budget or padded > max(_SMALL * self.budget, _PADDED * (tokens + length)):
                continue
            batch.append((job, index))
            longest, tokens = max(longest, length), tokens + length
        taken = {(id(job), index) for job, index in batch}
        rest = [entry for entry in candidates if (id(entry[0]), entry[1]) not in taken]
        for _ in candidates:
            self._rows.popleft()
        self._rows.extendleft(reversed(rest))
        return batch

    def _drop(self) -> None:
        """Remove rows that nobody waits for any more, and refuse those whose deadline passed."""
        now = time.monotonic()
        kept: deque[Waiting] = deque()
        for job, index in self._rows:
            if job.failed or job.abandoned.is_set():
                self.dropped += 1
            elif job.deadline <= now:
                self.dropped += 1
                job.fail(
                    Refusal(504, "The deadline passed while the request waited. Retry later.", self._retry_after())
                )
            else:
                kept.append((job, index))
        self._rows = kept

    def _tokens(self) -> int:
        return sum(job.rows[index].length for job, index in self._rows)

    def _expected(self, rows: int) -> float:
        """Return the seconds in which the rows in the queue, and as many more, will be computed; 0 if unknown."""
        return (self._in_use + rows) / self.rows_per_second if self.rows_per_second else 0.0

    def _retry_after(self) -> int:
        return max(1, min(60, math.ceil(self._expected(0))))
