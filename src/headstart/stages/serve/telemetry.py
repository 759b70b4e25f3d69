"""What the server measures, in Prometheus' format. No metric contains a text or another part of a request."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess, values

if TYPE_CHECKING:
    from headstart.stages.serve.bodies import BatchRow

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def _share(folder: str, name: str) -> None:
    """Keep the metrics that this process creates from now on in files, so that each worker reports those of all.

    Files are named by the worker and not by the process: a restarted worker continues to count, and a server that
    restarts workers for months has no more files than workers.
    """
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    values.ValueClass = values.MultiProcessValue(lambda: name)


class SupervisorTelemetry:
    """What the parent of the workers measures; the workers report it with their own metrics."""

    def __init__(self, folder: str) -> None:
        """Create the metrics in the shared folder."""
        self.folder = folder
        _share(folder, "supervisor")
        registry = CollectorRegistry()
        self.restarts = Counter("headstart_worker_restarts", "Workers restarted after they died", registry=registry)
        self.restarts.inc(0)
        self.workers = Gauge("headstart_workers", "Workers that accept connections", registry=registry,
                             multiprocess_mode="livesum")  # fmt: skip

    def alive(self, count: int) -> None:
        """Record the number of workers that accept connections."""
        self.workers.set(count)

    def restarted(self, index: int) -> None:
        """Record the death of a worker, and forget what it measured about its memory and its queue."""
        self.restarts.inc()
        multiprocess.mark_process_dead(index, self.folder)


class Telemetry:
    """The metrics of one server, or of one of several workers that share them in a folder."""

    def __init__(self, folder: str | None = None, worker: str = "") -> None:
        """Create the metrics in a registry of their own.

        Args:
            folder: where the workers of a server share their metrics; None for a server of one process.
            worker: the name of this worker.
        """
        self.folder = folder
        if folder is not None:
            _share(folder, worker)
        self.registry = registry = CollectorRegistry()
        self.latency = Histogram(
            "headstart_request_seconds", "Time to answer a request", ("route",), buckets=_SECONDS, registry=registry
        )
        self.replies = Counter(
            "headstart_replies", "Replies by route and status", ("route", "status"), registry=registry
        )
        self.computing = Histogram(
            "headstart_batch_seconds", "Time to compute a batch", buckets=_SECONDS, registry=registry
        )
        self.fill = Histogram(
            "headstart_batch_fill", "Tokens of a batch divided by the budget", buckets=_SHARES, registry=registry
        )
        self.rows = Counter("headstart_rows", "Rows computed", registry=registry)
        self.tokens = Counter("headstart_tokens", "Tokens computed, without padding", registry=registry)
        self.tasks_in_batch = Histogram(
            "headstart_batch_tasks", "Distinct tasks in a batch", buckets=(1, 2, 4, 8, 16, 32, 64), registry=registry
        )
        self.waiting = Gauge("headstart_queue_rows", "Rows that wait for a batch", registry=registry,
                             multiprocess_mode="livesum")  # fmt: skip
        self.dropped = Gauge(
            "headstart_queue_dropped_rows", "Rows dropped since the start: client gone or deadline passed",
            registry=registry, multiprocess_mode="sum",
        )  # fmt: skip
        self.resident = Gauge("headstart_resident_tasks", "Tasks in memory", registry=registry,
                              multiprocess_mode="livesum")  # fmt: skip
        self.resident_bytes = Gauge(
            "headstart_resident_bytes", "Memory of the tasks, without bodies", registry=registry,
            multiprocess_mode="livesum",
        )  # fmt: skip
        self.registered = Gauge("headstart_registered_tasks", "Tasks that can be asked for", registry=registry,
                                multiprocess_mode="livemax")  # fmt: skip
        self.loads = Counter("headstart_task_loads", "Tasks loaded from disk", registry=registry)
        self.evictions = Counter("headstart_task_evictions", "Tasks evicted from memory", registry=registry)
        self.replacements = Counter("headstart_task_replacements", "Tasks replaced by a new version", registry=registry)

    def batch(self, rows: Sequence[BatchRow], seconds: float, budget: int) -> None:
        """Record a computed batch."""
        self.computing.observe(seconds)
        tokens = sum(row.length for row in rows)
        self.fill.observe(min(1.0, tokens / budget))
        self.rows.inc(len(rows))
        self.tokens.inc(tokens)
        self.tasks_in_batch.observe(len({id(row.slot) for row in rows}))

    def render(self) -> bytes:
        """Return all metrics as text, those of the other workers included."""
        if self.folder is None:
            return generate_latest(self.registry)
        everything = CollectorRegistry()
        multiprocess.MultiProcessCollector(everything, self.folder)  # type: ignore[no-untyped-call]
        return generate_latest(everything)
